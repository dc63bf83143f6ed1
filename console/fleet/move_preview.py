"""What a move would mean, before anything is touched: refusals, consequences, capacity, expected time."""

import statistics
from typing import TypedDict

from django.db.models import F, QuerySet

from console.fleet.models import Deployment, Move, Server, WhenNoPair
from console.fleet.states import MOVE_OPEN, MoveStatus, ServerRole, ServerState
from console.gateway import loads
from console.traffic.models import RequestRecord

STOP_S = 3.0
"""From SIGTERM to an empty process group: 0.5 to 3 s were seen without hand-offs that nobody fetched."""
LATEST_REQUESTS = 200
PAST_STARTS = 20
"""How many of the newest are looked at for the expected time."""


class Capacity(TypedDict):
    """Servers that take traffic, by role."""

    plain: int
    prefill: int
    decode: int


class MovePreview(TypedDict):
    server: str
    from_role: str
    to_role: str
    refused: list[str]
    """Reasons why it cannot be moved now. Empty: it can."""
    consequences: list[str]
    """What traffic will see meanwhile or afterwards."""
    needs_confirmation: bool
    before: Capacity
    during: Capacity
    after: Capacity
    pairs_after: list[str]
    """"prefill → decode", for every pair that there will be."""
    inflight: int
    handoffs: int
    expected_s: float | None
    """Median time out of service in the past; None when nothing like it has happened yet."""


def preview_of(server: Server, role: ServerRole) -> MovePreview:
    ready = list(Server.objects.filter(deployment=server.deployment, state=ServerState.READY).exclude(pk=server.pk))
    load = loads.read().get(server.pk, loads.RouterLoad())
    during = _capacity([other.role for other in ready])
    consequences = _consequences(server, role, during)
    return MovePreview(
        server=server.name,
        from_role=server.role,
        to_role=role,
        refused=_refusals(server, role),
        consequences=consequences,
        needs_confirmation=bool(consequences),
        before=_capacity([other.role for other in ready] + [server.role] * (server.state == ServerState.READY)),
        during=during,
        after=_capacity([*(other.role for other in ready), role]),
        pairs_after=_pairs([*((other.name, other.role) for other in ready), (server.name, role)]),
        inflight=load.inflight,
        handoffs=load.handoffs,
        expected_s=expected_s(server.deployment, role),
    )


def expected_s(deployment: Deployment, role: str) -> float | None:
    """From moves of this deployment to `role`, else to any; before the first move from starts, stops and requests."""
    done = Move.objects.filter(deployment=deployment, status=MoveStatus.DONE).order_by("-id")
    times = _out_of_service_s(done.filter(to_role=role)) or _out_of_service_s(done)
    if times:
        return round(statistics.median(times), 1)
    starts = deployment.servers.filter(ready_at__gt=F("started_at")).values_list("started_at", "ready_at")
    times = [(ready - started).total_seconds() for started, ready in starts[:PAST_STARTS] if ready and started]
    return round(_drain_s(deployment) + STOP_S + statistics.median(times), 1) if times else None


def _drain_s(deployment: Deployment) -> float:
    """About how long the last request of a server runs on: as long as nine in ten of the latest ones took."""
    latest = RequestRecord.objects.filter(deployment=deployment).exclude(finished_ms=None).order_by("-received_at")
    took_ms = sorted(row.finished_ms or 0.0 for row in latest.only("finished_ms")[:LATEST_REQUESTS])
    return took_ms[len(took_ms) * 9 // 10] / 1000 if took_ms else 0.0


def _out_of_service_s(moves: QuerySet[Move]) -> list[float]:
    return [move.out_of_service.total_seconds() for move in moves[:PAST_STARTS] if move.out_of_service]


def _refusals(server: Server, role: ServerRole) -> list[str]:
    refused = []
    if server.role == role:
        refused.append(f"{server.name} has the role {role} already.")
    if server.state != ServerState.READY:
        refused.append(f"{server.name} is {server.state}. Only a ready server can be moved.")
    host = server.host
    if host is None:
        refused.append(f"{server.name} was adopted: someone else started it, so it cannot be started in another role.")
    elif host.maintenance:
        refused.append(f"Host {host.name} is in maintenance, so it could not start again. End it first.")
    elif not host.is_reachable:
        refused.append(f"Host {host.name} does not report. Look at its agent first.")
    if role != ServerRole.PLAIN and not server.deployment.connector:
        refused.append(f"The deployment has no KV connector, which a {role} server needs. Set one first.")
    other = Move.objects.filter(deployment=server.deployment, status__in=MOVE_OPEN).select_related("server").first()
    if other is not None:
        refused.append(f"{other.server.name} is being moved to {other.to_role}. One at a time: wait for it to end.")
    return refused


def losing(server: Server) -> list[str]:
    """What traffic will see when the server is stopped; not empty: it has to be confirmed."""
    if server.state != ServerState.READY:
        return []
    ready = Server.objects.filter(deployment=server.deployment, state=ServerState.READY).exclude(pk=server.pk)
    return _without(server, _capacity(list(ready.values_list("role", flat=True))))


def _consequences(server: Server, role: ServerRole, during: Capacity) -> list[str]:
    if server.role == role or server.state != ServerState.READY:
        return []
    return _without(server, during)


def _without(server: Server, during: Capacity) -> list[str]:
    if not any(during.values()):
        return ["It is the only ready server: every request fails until a server is ready again."]
    if server.role == ServerRole.PREFILL and not during["prefill"] and during["decode"]:
        return [f"It is the last ready prefill server: no request can be split. {_without_pair(server.deployment)}"]
    if server.role == ServerRole.DECODE and not during["decode"] and during["prefill"]:
        rest = _without_pair(server.deployment)
        if not during["plain"]:
            rest = "There is no plain server either, so requests fail unless a prefill server can answer them."
        return [f"It is the last ready decode server: no request can be split. {rest}"]
    return []


def _without_pair(deployment: Deployment) -> str:
    if deployment.when_no_pair == WhenNoPair.REFUSE:
        return "This deployment then refuses requests with 503."
    return "Requests are then served without splitting, and long prompts stall running streams."


def _capacity(roles: list[str]) -> Capacity:
    return Capacity(plain=roles.count("plain"), prefill=roles.count("prefill"), decode=roles.count("decode"))


def _pairs(servers: list[tuple[str, str]]) -> list[str]:
    prefill = sorted(name for name, role in servers if role == ServerRole.PREFILL)
    decode = sorted(name for name, role in servers if role == ServerRole.DECODE)
    return [f"{one} → {other}" for one in prefill for other in decode]
