"""Small questions that any server can answer. Nobody counts them as requests."""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from routing.backend import Backend
from routing.errors import Answered, Headers, LegError
from routing.leg import Leg
from routing.table import Deployment, Role, Timeouts

MOST_ASKED: Final = 3
"""Servers that one question is sent to, one after the other."""
TIMEOUTS: Final = Timeouts(connect_s=1.0, first_byte_s=2.0, idle_s=2.0)
BY_ROLE: Final[Mapping[Role, int]] = {"decode": 0, "plain": 1, "prefill": 2}
"""Those first whose answers clients get."""
AWAY_FROM_STREAMS: Final[Mapping[Role, int]] = {"prefill": 0, "plain": 1, "decode": 2}
"""Those last whose streams would stand still meanwhile."""
Told = tuple[int, Headers, bytes]
"""Status, headers and body of an answer."""


async def first_answer(
    method: str,
    target: str,
    headers: Headers,
    deployments: Iterable[Deployment],
    backends: Mapping[str, Backend],
    *,
    order: Mapping[Role, int] = BY_ROLE,
    timeouts: Timeouts = TIMEOUTS,
) -> Told | None:
    """Of the first server that gives one; None when none does. What is wrong with the question is an answer."""
    for backend in _usable(deployments, backends, order)[:MOST_ASKED]:
        try:
            with Leg(backend, timeouts, is_aside=True) as leg:
                await leg.open(method, target, headers, None)
                return leg.head.status, leg.head.headers, await leg.read()
        except Answered as answered:
            if answered.is_clients:
                return answered.status, answered.headers, answered.body
        except LegError:
            continue
    return None


def _usable(
    deployments: Iterable[Deployment], backends: Mapping[str, Backend], order: Mapping[Role, int]
) -> list[Backend]:
    now = time.monotonic()
    servers = [server for deployment in deployments for server in deployment.servers]
    ranked = sorted(servers, key=lambda server: order[server.role])
    found = [backends[server.id] for server in ranked if server.id in backends]
    return [backend for backend in found if backend.is_usable(now)]
