"""What browsers need before a page of another site may read an answer (CORS).

Whether it may is a server's own setting: `Origin` goes to the server that answers, whose headers come back as they are,
and the question that a browser asks before a request (its preflight) goes to one as well.
"""

import time
from collections.abc import Mapping
from typing import Final

from routing.backend import Backend
from routing.errors import Answered, Headers, LegError, NotInTable, Refusal
from routing.leg import Leg
from routing.reply import Request
from routing.table import Server, Table, Timeouts

ORIGIN: Final = b"origin"
ASKED_METHOD: Final = b"access-control-request-method"
OF_PREFLIGHTS: Final = frozenset(
    (ORIGIN, ASKED_METHOD, b"access-control-request-headers", b"access-control-request-private-network", b"user-agent")
)
"""What a server may see of a preflight."""
MOST_ASKED: Final = 3
"""Servers that one preflight is sent to, one after the other."""
TIMEOUTS: Final = Timeouts(connect_s=1.0, first_byte_s=2.0, idle_s=2.0)
BY_ROLE: Final = {"decode": 0, "plain": 1, "prefill": 2}
"""Those first whose answers clients get."""


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


async def preflight(request: Request, table: Table, backends: Mapping[str, Backend]) -> tuple[int, Headers, bytes]:
    """The answer of the first server that gives one. Raises `Refusal`, which names no server: anybody may ask."""
    headers = [(name, value) for name, value in request.headers if name in OF_PREFLIGHTS]
    for backend in _usable(table, backends)[:MOST_ASKED]:
        try:
            with Leg(backend, TIMEOUTS, is_aside=True) as leg:
                await leg.open("OPTIONS", _target(request.path), headers, None)
                return leg.head.status, leg.head.headers, await leg.read()
        except Answered as answered:
            if answered.is_clients:
                return answered.status, answered.headers, answered.body
        except LegError:
            continue
    refusal = Refusal if table.deployments else NotInTable
    raise refusal(503, "No server can answer now. Try again soon.", kind="ServiceUnavailableError", retry_after_s=5)


def _usable(table: Table, backends: Mapping[str, Backend]) -> list[Backend]:
    now = time.monotonic()
    servers = [server for deployment in table.deployments.values() for server in deployment.servers]
    found = [backends[server.id] for server in sorted(servers, key=_rank) if server.id in backends]
    return [backend for backend in found if backend.is_usable(now)]


def _rank(server: Server) -> int:
    return BY_ROLE[server.role]


def _target(path: str) -> str:
    """A model's name may be anything, also what means another path to a server: it stays here."""
    return "/v1/models" if path.startswith("/v1/models/") else path
