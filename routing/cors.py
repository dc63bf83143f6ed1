"""What browsers need before a page of another site may read an answer (CORS).

Whether it may is a server's own setting: `Origin` goes to the server that answers, whose headers come back as they are,
and the question that a browser asks before a request (its preflight) goes to one as well.
"""

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


def is_preflight(request: Request) -> bool:
    return request.method == "OPTIONS" and request.get(ORIGIN) is not None and request.get(ASKED_METHOD) is not None


def comes_from_elsewhere(request: Request) -> bool:
    """A page of another site asks, as far as the browser says."""
    return request.get(ORIGIN) is not None and request.get(b"sec-fetch-site") != b"same-origin"


def for_own_answer(request: Request) -> Headers:
    """Lets a page of any site read an answer of the router's own, as engines let it read their errors by default.

    Such an answer says no more than anybody is told who can send a request at all; unread, it is a "network error" to
    the app's user. A request with a cookie is left out: the console's pages may be at the same address, and what is
    sent as a person who is logged in there is nothing for other sites. Pages and REST never come by here.
    """
    if request.get(ORIGIN) is None or request.get(b"cookie") is not None:
        return []
    return [(b"access-control-allow-origin", b"*"), (b"vary", b"Origin")]


def of_server(headers: Headers) -> Headers:
    """What a server said of who may read its answer."""
    return [(name, value) for name, value in headers if name == b"vary" or name.startswith(b"access-control-")]


async def preflight(request: Request, table: Table, backends: Mapping[str, Backend]) -> Told:
    """The answer of the first server that gives one. Raises `Refusal`, which names no server: anybody may ask."""
    headers = [(name, value) for name, value in request.headers if name in OF_PREFLIGHTS]
    deployments = table.deployments.values()
    told = await first_answer("OPTIONS", _target(request.path), headers, deployments, backends)
    if told is not None:
        return told
    refusal = Refusal if table.deployments else NotInTable
    raise refusal(503, "No server can answer now. Try again soon.", kind="ServiceUnavailableError", retry_after_s=5)


def _target(path: str) -> str:
    """A model's name may be anything, also what means another path to a server: it stays here."""
    return "/v1/models" if path.startswith("/v1/models/") else path
