"""Watching adopted servers: no agent stands beside them, so the console's worker itself asks how they are.

What was seen is kept in the same shape as an agent's observation, so cards, canaries and the KV watch need no more.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from console.fleet import adoption
from console.fleet.models import Server
from console.fleet.states import ServerState
from console.launch import metrics, observing, outside, queueing
from console.launch.contracts import Cause, ServerObservation
from console.launch.probe import Probe, probe_place

logger = logging.getLogger(__name__)
S = ServerState

LOOK_EVERY_S = 2.0
AT_ONCE = 16
GONE_AFTER_S = 5.0
"""A server that refuses connections or reports itself ill for so long is taken out of routing."""


@dataclass(frozen=True)
class Step:
    """`states`: to be entered one after another; none: it stays. `anew`: another process answers than before."""

    states: tuple[ServerState, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    anew: bool = False
    remove: bool = False


STAY = Step()


class Rhythm:
    """True once per `every_s`, at most."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self._due_at = every_s, 0.0

    def is_due(self, now: float) -> bool:
        if now < self._due_at:
            return False
        self._due_at = now + self._every_s
        return True


_rounds = Rhythm(LOOK_EVERY_S - 0.1)


def post_if_any() -> None:
    """For the tick, which comes each second: asks for a round when one is due and there is anything to look at."""
    if _rounds.is_due(time.monotonic()) and Server.objects.filter(host=None).exists():
        queueing.post("console.look_at_adopted", [], queueing.CHECKS, expires_s=LOOK_EVERY_S)


def look_at_all() -> None:
    """One round, at most `AT_ONCE` at a time. A server that does not answer holds its thread for some seconds."""
    servers = list(Server.objects.with_names().filter(host=None))
    if not servers:
        return
    with ThreadPoolExecutor(min(AT_ONCE, len(servers)), thread_name_prefix="adopted") as pool:
        seen = list(pool.map(_ask, [server.adopted_url for server in servers]))
    for server, probe in zip(servers, seen, strict=True):
        note(server, probe, time.time())


def note(server: Server, probe: Probe, now: float) -> None:
    """`now`: Unix time."""
    started_at = metrics.process_started_at(probe.metrics) if probe.healthy else None
    before = server.observed.get("process_started_at") or server.told.get("process_started_at")
    silent_since = None if probe.healthy else server.observed.get("silent_since") or now
    step = decide(
        ServerState(server.state),
        server.state_before_unreachable,
        probe,
        is_other_process=bool(before and started_at and before != started_at),
        silent_s=0.0 if silent_since is None else now - silent_since,
        url=server.adopted_url,
    )
    observed = _observation(server, probe, started_at or before)
    with transaction.atomic():
        if step.remove:
            adoption.remove_drained(server)
            return
        fields = observing.kept(server, observed, now)
        fields["observed"]["silent_since"] = silent_since
        _take(server, step, fields)


def decide(
    state: ServerState, before_unreachable: str, probe: Probe, *, is_other_process: bool, silent_s: float, url: str
) -> Step:
    """From one look at an adopted server to what becomes of it."""
    if probe.healthy:
        return _answers(state, before_unreachable, is_other_process)
    if silent_s < GONE_AFTER_S or state == S.UNREACHABLE:
        return STAY
    if state == S.DRAINING:
        return STAY if probe.listens else Step(remove=True)
    if probe.listens and state == S.READY:
        # Silence may be our own network's: the routers trust their own probes and keep it in their table.
        return Step((S.UNREACHABLE,), {"state_before_unreachable": S.READY})
    return Step((S.UNREACHABLE,), {"state_before_unreachable": S.VERIFYING, "failure": dict(_gone(url))})


def _answers(state: ServerState, before_unreachable: str, is_other_process: bool) -> Step:
    if state == S.UNREACHABLE:
        back = {"state_before_unreachable": "", "failure": {}}
        if before_unreachable == S.READY and not is_other_process:
            return Step((S.READY,), back)
        return Step((S.VERIFYING,), back, anew=True)
    if is_other_process and state in (S.READY, S.VERIFYING):
        # What its pairs showed is about a process that is gone: it takes the way of one that came back.
        return Step((S.UNREACHABLE, S.VERIFYING), {}, anew=True)
    return STAY


def _gone(url: str) -> Cause:
    return Cause(
        code="gone",
        message=f"No healthy server answers at {url} any more.",
        instruction="Start it again where it was started: it comes back by itself. Or let it go.",
    )


def _take(server: Server, step: Step, fields: dict[str, Any]) -> None:
    if not step.states:
        observing.keep(server, fields)
        return
    if step.anew:
        fields["observed"]["generation"] = server.generation + 1
    for state in step.states:
        last = state == step.states[-1]
        more = {**fields, **step.fields, **(_fresh(server) if step.anew else {})} if last else {}
        if not server.transition(state, **more):
            return
    logger.info("adopted server %s is %s", server.name, server.state)
    if server.state == S.VERIFYING:
        transaction.on_commit(lambda: queueing.verify_server(server.pk, server.generation))


def _fresh(server: Server) -> dict[str, Any]:
    return {
        "generation": server.generation + 1,
        "ready_at": None,
        "check_attempts": 0,
        "check_due_at": None,
        "check_problem": "",
        "kv_watch": {},
    }


def _observation(server: Server, probe: Probe, started_at: float | None) -> ServerObservation:
    return ServerObservation(
        server_id=server.pk,
        generation=server.generation,
        pid=None,
        process_started_at=started_at,
        alive=probe.listens,
        group_pids=[],
        exit_code=None,
        stop_requested=False,
        phase="listening",
        phase_times={},
        last_line_at=None,
        engine_id="",
        kv_cache_tokens=metrics.kv_cache_tokens(probe.metrics) or server.told.get("kv_cache_tokens"),
        version=server.told.get("version", ""),
        cause=None,
        healthy=probe.healthy,
        sample=probe.sample,
    )


def _ask(url: str) -> Probe:
    try:
        place = outside.parse(url)
        outside.resolve(place)  # a name may lead elsewhere than when it was adopted
    except outside.BadAddress:
        return Probe(listens=True, healthy=False, sample=None)
    return probe_place(place)
