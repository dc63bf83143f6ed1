"""What the yard shows of a server and of a move."""

from typing import cast

from console.fleet.models import Move, Server
from console.fleet.states import HOLDS_GPU, PairState, ServerRole, ServerState
from console.gateway.loads import RouterLoad
from console.live.events import Degradation, MoveCard, ServerCard

S = ServerState

PHASE_WORDS = {
    "spawned": "process started",
    "imports": "loading the engine",
    "model": "reading the model's configuration",
    "weights": "loading weights",
    "kv_cache": "sizing the KV cache",
    "connector": "setting up the KV connector",
    "nixl": "setting up NIXL",
    "warmup": "warming up",
    "listening": "listening",
}
SILENT_LOG_AFTER_S = 180.0
UNHEALTHY = {
    False: "Its health check fails. Read its log.",
    True: "Its health check fails. Its log is where it was started.",
}
"""By whether it was adopted."""


def server_card(server: Server, load: RouterLoad | None = None) -> ServerCard:
    """`load`: of all routers on it, when known. Costs a query for its pairs unless they were fetched `with_pairs`."""
    load = load or RouterLoad()
    observed, sample = server.observed, server.observed.get("sample") or {}
    return ServerCard(
        id=server.pk,
        name=server.name,
        deployment=server.deployment.name,
        host=server.host.name if server.host else "",
        adopted=server.is_adopted,
        gpus=list(server.gpu_indexes),
        role=server.role,
        state=server.state,
        state_text=state_text(server, load),
        state_since=server.state_since.timestamp(),
        generation=server.generation,
        phase=observed.get("phase", "") if server.state in HOLDS_GPU else "",
        inflight=load.inflight,
        handoffs=load.handoffs,
        running=sample.get("running"),
        waiting=sample.get("waiting"),
        kv_usage=sample.get("kv_usage"),
        tokens_per_s=observed.get("tokens_per_s"),
        engine_at=sample.get("at"),
        degradations=[*degradations(server), *_avoided(load)],
        failure=cast("dict[str, str]", server.failure),
        url=server.url,
        can_move_to=can_move_to(server),
        may_start=server.is_at_rest and not server.holds_gpu,
        may_stop=may_stop(server),
    )


def move_card(move: Move) -> MoveCard:
    outage = move.out_of_service
    return MoveCard(
        id=move.pk,
        server=move.server_id,
        server_name=move.server.name,
        from_role=move.from_role,
        to_role=move.to_role,
        status=move.status,
        requested_at=move.requested_at.timestamp(),
        finished_at=move.finished_at.timestamp() if move.finished_at else None,
        out_of_service_s=outage.total_seconds() if outage is not None else None,
        error=move.error,
        requested_by=move.requested_by,
    )


def can_move_to(server: Server) -> list[str]:
    if server.is_adopted or server.state != S.READY:
        return []
    return [role for role in ServerRole.values if role != server.role]


def may_stop(server: Server) -> bool:
    if server.is_adopted or server.state in (S.STOPPED, S.STOPPING, S.DRAINING):
        return False
    return server.holds_gpu


def state_text(server: Server, load: RouterLoad) -> str:
    """The state in words, with what it waits for."""
    state = ServerState(server.state)
    if state == S.PENDING:
        return f"Pending: waiting for host {server.own_host.name}"
    if state in (S.STARTING, S.LOADING):
        return f"{state.label}: {PHASE_WORDS.get(server.observed.get('phase', ''), 'waiting for its first line')}"
    if state == S.VERIFYING:
        return f"Verifying: {server.check_problem}" if server.check_problem else "Verifying: trying it out"
    if state == S.DRAINING:
        return f"Draining: {_left(load)}"
    if state == S.STOPPING:
        return f"Stopping: {_why_it_still_stops(server)}"
    if state == S.FAILED:
        return f"Failed: {server.failure.get('message', 'it ended by itself')}"
    if state == S.UNREACHABLE:
        was = server.state_before_unreachable or "running"
        if server.host is None:
            return f"Unreachable: {server.adopted_url} does not answer; it comes back by itself when it does"
        return f"Unreachable: host {server.host.name} stopped reporting; it was {was} and may well go on"
    return state.label


def _why_it_still_stops(server: Server) -> str:
    host = server.own_host
    if not host.is_reachable:
        return f"host {host.name} does not report; it is ended when the host is back. Force the stop to give it up"
    stuck = server.observed.get("cause")
    return stuck["message"] if stuck else "waiting until its processes are gone"


def _left(load: RouterLoad) -> str:
    parts = []
    if load.inflight:
        parts.append(f"{load.inflight} request{'s' * (load.inflight != 1)} left")
    if load.handoffs:
        parts.append(f"{load.handoffs} hand-off{'s' * (load.handoffs != 1)} left")
    return ", ".join(parts) or "nothing left, waiting for the routers to say so"


def degradations(server: Server) -> list[Degradation]:
    found: list[Degradation] = []
    observed = server.observed
    if server.state == S.READY and observed.get("healthy") is False:
        found.append(Degradation(code="unhealthy", text=UNHEALTHY[server.is_adopted]))
    if server.state == S.READY and server.kv_watch.get("not_transferred"):
        found.append(Degradation(code="kv_not_transferred", text=server.kv_watch["text"]))
    if server.state == S.FAILED and server.leftover_pids:
        found.append(Degradation(code="left_behind", text=_left_behind(server)))
    if server.state == S.READY and server.runs_older_settings:
        found.append(Degradation(code="older_settings", text=_older_settings(server)))
    silent_s = observed.get("log_silent_s") or 0.0
    if server.state in (S.STARTING, S.LOADING) and silent_s > SILENT_LOG_AFTER_S:
        text = f"No log line for {silent_s / 60:.0f} minutes. It may be loading still; read its log before you stop it."
        found.append(Degradation(code="silent_log", text=text))
    if server.state == S.READY and server.role != ServerRole.PLAIN:
        found += _pair_degradations(server)
    return found


def _left_behind(server: Server) -> str:
    pids = ", ".join(map(str, server.leftover_pids))
    return (
        f"Processes of it still run on {server.own_host.name} (pid {pids}) and hold its GPU. "
        "If they stay, press Stop to end them, then press Start."
    )


def _older_settings(server: Server) -> str:
    return (
        f"It runs on the settings of revision {server.revision}; the deployment is at {server.deployment.revision}. "
        "Stop it and start it again to take them over."
    )


def _avoided(load: RouterLoad) -> list[Degradation]:
    if load.avoided:
        text = f"Routers send it nothing for a while, it failed: {load.avoided}. They try again by themselves."
        return [Degradation(code="circuit_open", text=text)]
    if load.is_silent:
        text = (
            "It has had requests for long and brings no answer, so routers ask others while there are any. Read its "
            "log: an engine that is stuck goes on answering /health. Stop it and start it again if it stays so."
        )
        return [Degradation(code="no_answers", text=text)]
    return []


def _pair_degradations(server: Server) -> list[Degradation]:
    as_prefill = server.role == ServerRole.PREFILL
    opposite = ServerRole.DECODE if as_prefill else ServerRole.PREFILL
    found = []
    for pair in server.pairs():
        peer = pair.decode if as_prefill else pair.prefill
        if peer.role != opposite:
            continue  # one of them has been moved since: no pair any more
        if peer.state != S.READY or (pair.state == PairState.VERIFIED and pair.is_current):
            continue
        if pair.is_current and pair.state == PairState.FAILED:
            text = f"No traffic with {peer.name}: {pair.reason} {_pair_advice(server, peer)}"
            found.append(Degradation(code="pair_failed", text=text))
        else:
            found.append(Degradation(code="pair_unverified", text=f"Not yet verified with {peer.name}."))
    return found


def _pair_advice(server: Server, peer: Server) -> str:
    """Names the one that still runs on old settings; `peer` comes without its deployment, which is the same."""
    latest = server.deployment.revision
    behind = [one.name for one in (server, peer) if one.revision is not None and one.revision < latest]
    if len(behind) == 2:
        return f"{' and '.join(behind)} run on older settings: stop both and start them again."
    if behind:
        return f"{behind[0]} runs on older settings: stop it and start it again."
    return f"Tried again by itself; restarting {peer.name} may help."
