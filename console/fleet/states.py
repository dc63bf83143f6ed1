"""The declared graph of a server's states, and what each state means for routing and for the operator. Pure."""

from collections.abc import Mapping

from django.db.models import TextChoices


class ServerRole(TextChoices):
    PLAIN = "plain", "Plain"
    PREFILL = "prefill", "Prefill"
    DECODE = "decode", "Decode"


class ServerState(TextChoices):
    PENDING = "pending", "Pending"  # asked for; the host has not reported a process yet
    STARTING = "starting", "Starting"  # process runs, nothing known of the model yet
    LOADING = "loading", "Loading"  # weights, KV cache, connector, warm-up
    VERIFYING = "verifying", "Verifying"  # listens; a completion and the pair canaries are on their way
    READY = "ready", "Ready"  # takes traffic
    DRAINING = "draining", "Draining"  # no new traffic; running streams and hand-offs end
    STOPPING = "stopping", "Stopping"  # the process group is being ended
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"
    UNREACHABLE = "unreachable", "Unreachable"  # its host stopped reporting; the process may well serve


S = ServerState
GRAPH: Mapping[ServerState, frozenset[ServerState]] = {
    S.PENDING: frozenset({S.STARTING, S.LOADING, S.VERIFYING, S.STOPPING, S.STOPPED, S.FAILED, S.UNREACHABLE}),
    S.STARTING: frozenset({S.LOADING, S.VERIFYING, S.STOPPING, S.FAILED, S.UNREACHABLE}),
    S.LOADING: frozenset({S.VERIFYING, S.STOPPING, S.FAILED, S.UNREACHABLE}),
    S.VERIFYING: frozenset({S.READY, S.STOPPING, S.FAILED, S.UNREACHABLE}),
    S.READY: frozenset({S.DRAINING, S.FAILED, S.UNREACHABLE}),
    S.DRAINING: frozenset({S.READY, S.STOPPING, S.FAILED, S.UNREACHABLE}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED, S.UNREACHABLE}),
    S.STOPPED: frozenset({S.PENDING}),
    S.FAILED: frozenset({S.PENDING, S.STOPPING, S.STOPPED}),
    S.UNREACHABLE: frozenset(
        {S.STARTING, S.LOADING, S.VERIFYING, S.READY, S.DRAINING, S.STOPPING, S.STOPPED, S.FAILED}
    ),
}

AT_REST = frozenset({S.STOPPED, S.FAILED})
ON_ITS_WAY_UP = frozenset({S.PENDING, S.STARTING, S.LOADING, S.VERIFYING})
HOLDS_GPU = frozenset(S) - AT_REST
"""States in which its GPUs, ports and name on the host belong to it."""


def may_become(old: ServerState, new: ServerState) -> bool:
    return new in GRAPH[old]


class MoveStatus(TextChoices):
    DRAINING = "draining", "Draining"
    STOPPING = "stopping", "Stopping"
    STARTING = "starting", "Starting"  # pending, starting and loading in the new role
    VERIFYING = "verifying", "Verifying"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


MOVE_OPEN = frozenset({MoveStatus.DRAINING, MoveStatus.STOPPING, MoveStatus.STARTING, MoveStatus.VERIFYING})


class PairState(TextChoices):
    UNVERIFIED = "unverified", "Not verified yet"
    VERIFIED = "verified", "Verified"
    FAILED = "failed", "Failed"
