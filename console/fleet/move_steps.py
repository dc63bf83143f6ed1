"""Where a move goes next, from its own status and its server's state. Pure."""

from collections.abc import Mapping
from typing import Literal

from console.fleet.states import MoveStatus, ServerState

Step = Literal["cancelled", "stopping", "start", "verifying", "done", "failed"]
M, S = MoveStatus, ServerState

STEPS: Mapping[tuple[MoveStatus, ServerState], Step] = {
    # Draining: the server was taken back, or is drained and being ended.
    (M.DRAINING, S.READY): "cancelled",
    (M.DRAINING, S.STOPPING): "stopping",
    (M.DRAINING, S.STOPPED): "start",
    (M.DRAINING, S.FAILED): "failed",
    # Stopping: once it is gone it starts in its new role.
    (M.STOPPING, S.STOPPED): "start",
    (M.STOPPING, S.FAILED): "failed",
    # Starting and verifying: somebody may stop it, or it may end by itself.
    (M.STARTING, S.VERIFYING): "verifying",
    (M.STARTING, S.READY): "done",
    (M.STARTING, S.FAILED): "failed",
    (M.STARTING, S.DRAINING): "failed",
    (M.STARTING, S.STOPPING): "failed",
    (M.STARTING, S.STOPPED): "failed",
    (M.VERIFYING, S.READY): "done",
    (M.VERIFYING, S.FAILED): "failed",
    (M.VERIFYING, S.DRAINING): "failed",
    (M.VERIFYING, S.STOPPING): "failed",
    (M.VERIFYING, S.STOPPED): "failed",
}


def next_step(status: MoveStatus, state: ServerState) -> Step | None:
    """None: nothing to do, it waits for its server (also while its host is silent), or it has ended."""
    return STEPS.get((status, state))
