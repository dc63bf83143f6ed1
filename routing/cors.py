"""What browsers need before a page of another site may read an answer (CORS).

Whether it may is a server's own setting: `Origin` goes to the server that answers, whose headers come back as they are,
and the question that a browser asks before a request (its preflight) goes to one as well. The router's own answers say
what a server said of the same site, where one was asked.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from routing.asides import Told, first_answer
from routing.backend import Backend
from routing.errors import Headers, NotInTable, Refusal
from routing.reply import Request
from routing.table import Table

ORIGIN: Final = b"origin"
ASKED_METHOD: Final = b"access-control-request-method"
OF_PREFLIGHTS: Final = frozenset(
    (ORIGIN, ASKED_METHOD, b"access-control-request-headers", b"access-control-request-private-network", b"user-agent")
)
"""What a server may see of a preflight."""
OF_ANSWERS: Final = (b"access-control-allow-origin", b"access-control-allow-credentials")
"""What of the answer to a preflight holds for the answers that follow it."""
MOST_ORIGINS: Final = 1000
LONGEST_ORIGIN: Final = 512
"""In bytes. A site's name is shorter, and only those are remembered."""


class Origins:
    """What servers said of sites in the answers to their preflights. Those heard of longest ago are forgotten."""

    def __init__(self) -> None:
        self._said: OrderedDict[bytes, Headers] = OrderedDict()

    def learn(self, request: Request, headers: Headers) -> None:
        origin = request.get(ORIGIN) or b""
        if len(origin) > LONGEST_ORIGIN:
            return
        said = [(name, value) for name, value in headers if name in OF_ANSWERS]
        self._said[origin] = [*said, (b"vary", b"Origin")]
        self._said.move_to_end(origin)
        if len(self._said) > MOST_ORIGINS:
            self._said.popitem(last=False)

    def of(self, origin: bytes) -> Headers | None:
        return self._said.get(origin)


def is_preflight(request: Request) -> bool:
    return request.method == "OPTIONS" and request.get(ORIGIN) is not None and request.get(ASKED_METHOD) is not None


def comes_from_elsewhere(request: Request) -> bool:
    """A page of another site asks, as far as the browser says."""
    return request.get(ORIGIN) is not None and request.get(b"sec-fetch-site") != b"same-origin"


def for_own_answer(request: Request, origins: Origins) -> Headers:
    """Lets the pages read an answer of the router's own that servers let read theirs. Of whose site no server was asked
    yet, it lets any read it, as engines do by default.

    Such an answer says no more than anybody is told who can send a request at all; unread, it is a "network error" to
    the app's user. A request with a cookie is left out then: the console's pages may be at the same address, and what
    is sent as a person who is logged in there is nothing for other sites. Pages and REST never come by here.
    """
    origin = request.get(ORIGIN)
    said = None if origin is None else origins.of(origin)
    if said is not None:
        return list(said)
    if origin is None or request.get(b"cookie") is not None:
        return []
    return [(b"access-control-allow-origin", b"*"), (b"vary", b"Origin")]


def of_server(headers: Headers) -> Headers:
    """What a server said of who may read its answer."""
    return [(name, value) for name, value in headers if name == b"vary" or name.startswith(b"access-control-")]


async def preflight(request: Request, table: Table, backends: Mapping[str, Backend], origins: Origins) -> Told:
    """The answer of the first server that gives one. Raises `Refusal`, which names no server: anybody may ask."""
    headers = [(name, value) for name, value in request.headers if name in OF_PREFLIGHTS]
    deployments = table.deployments.values()
    told = await first_answer("OPTIONS", _target(request.path), headers, deployments, backends)
    if told is not None:
        origins.learn(request, told[1])
        return told
    refusal = Refusal if table.deployments else NotInTable
    raise refusal(503, "No server can answer now. Try again soon.", kind="ServiceUnavailableError", retry_after_s=5)


def _target(path: str) -> str:
    """A model's name may be anything, also what means another path to a server: it stays here."""
    return "/v1/models" if path.startswith("/v1/models/") else path
