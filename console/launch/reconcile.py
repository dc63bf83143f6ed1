"""From what a host reports of a server to what the server's state becomes. Pure.

The process decides, not our wish: a state follows what was observed of the present generation. Nothing here stops a
process that serves; the only stops are for processes that nobody asked for any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from console.fleet.states import AT_REST, ON_ITS_WAY_UP, ServerState
from console.launch.contracts import Cause, Phase, ServerObservation

S = ServerState

SETTLE_S = 5.0
"""A report may have been written before the host took our newest message; silence counts only after this long."""

STATE_OF_PHASE: Mapping[Phase, ServerState] = {
    "spawned": S.STARTING,
    "imports": S.STARTING,
    "model": S.LOADING,
    "weights": S.LOADING,
    "kv_cache": S.LOADING,
    "connector": S.LOADING,
    "nixl": S.LOADING,
    "warmup": S.LOADING,
    "listening": S.VERIFYING,
}
_RANK = {S.PENDING: 0, S.STARTING: 1, S.LOADING: 2, S.VERIFYING: 3}


@dataclass(frozen=True)
class ServerFacts:
    name: str
    host: str
    state: ServerState
    before_unreachable: str = ""
    in_state_s: float = 3600.0


@dataclass(frozen=True)
class Decision:
    """`state` None: it stays as it is. `stop`: ask the host to end the observed process."""

    state: ServerState | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    stop: bool = False


NOTHING = Decision()


def decide(server: ServerFacts, seen: ServerObservation | None) -> Decision:
    """`seen` is of the server's present generation; None: its host knows nothing of that."""
    if seen is None:
        return _unknown(server)
    if seen["alive"]:
        return _alive(server, seen)
    if seen["group_pids"]:
        return _main_process_gone(server, seen)
    return _gone(server, seen)


def _unknown(server: ServerFacts) -> Decision:
    if server.state in AT_REST or server.state == S.PENDING or server.in_state_s < SETTLE_S:
        return NOTHING
    if server.state == S.STOPPING:
        return Decision(S.STOPPED, {"failure": {}})
    return _failed(
        Cause(
            code="unknown_to_host",
            message=f"The agent on {server.host} knows nothing of its process.",
            instruction="Look on the host whether it still runs and end it by hand, then press Start.",
        )
    )


def _alive(server: ServerFacts, seen: ServerObservation) -> Decision:
    if server.state in AT_REST:
        # Given up, or started too late: nobody counts on it, and it holds a GPU.
        return Decision(stop=True)
    if server.state == S.STOPPING:
        return Decision(stop=not seen["stop_requested"])
    if server.state in ON_ITS_WAY_UP:
        return _climb(server.state, seen)
    if server.state == S.UNREACHABLE:
        return _returned(server, seen)
    return NOTHING


def _climb(state: ServerState, seen: ServerObservation) -> Decision:
    reached = S.VERIFYING if seen["healthy"] else STATE_OF_PHASE[seen["phase"]]
    if _RANK[reached] <= _RANK[state]:
        return NOTHING
    return Decision(reached, {"check_due_at": None} if reached == S.VERIFYING else {})


def _returned(server: ServerFacts, seen: ServerObservation) -> Decision:
    before = ServerState(server.before_unreachable or S.STARTING)
    state = before
    if before in ON_ITS_WAY_UP:
        state = max(before, STATE_OF_PHASE[seen["phase"]], key=lambda one: _RANK[one])
    return Decision(state, {"state_before_unreachable": "", "check_due_at": None})


def _main_process_gone(server: ServerFacts, seen: ServerObservation) -> Decision:
    """Processes of its group outlived the main one, for a moment as a rule, or until somebody ends them.

    They may hold the GPU. The card tells of them while they are there; the cause of the failure stands by itself.
    """
    if server.state == S.STOPPING:
        return Decision(stop=not seen["stop_requested"])
    if server.state == S.STOPPED:
        return Decision(stop=True)
    if server.state == S.FAILED:
        return NOTHING
    return _failed(_cause(server, seen))


def _gone(server: ServerFacts, seen: ServerObservation) -> Decision:
    if server.state in AT_REST:
        return NOTHING
    if server.state == S.STOPPING:
        return Decision(S.STOPPED, {"failure": {}})
    never_ran = seen["pid"] is None and seen["exit_code"] is None and seen["cause"] is None
    if server.state == S.PENDING and never_ran:
        return NOTHING
    return _failed(_cause(server, seen))


def _failed(cause: Cause) -> Decision:
    return Decision(S.FAILED, {"failure": dict(cause), "state_before_unreachable": ""})


def _cause(server: ServerFacts, seen: ServerObservation) -> Cause:
    known = seen["cause"]
    if known is not None:
        return known
    was = server.before_unreachable or server.state
    code = seen["exit_code"]
    if code is None:
        how = "Its process is gone"
    elif code < 0:
        how = f"Its process was ended by signal {-code}"
    else:
        how = f"Its process ended by itself with exit code {code}"
    asked = ", by a stop that did not come from here" if seen["stop_requested"] else ""
    return Cause(
        code="exited", message=f"{how} while it was {was}{asked}.", instruction="Read its log, then press Start."
    )
