"""Taking a server out of traffic, back into it, and ending it."""

from console.fleet.models import Server
from console.fleet.states import ServerState
from console.launch import remote


def begin_drain(server: Server, reason: str) -> bool:
    """Nothing new is sent to it from the routing epoch on that the gateway notes in `drain_epoch`.

    Call it in a transaction. False when somebody else was faster.
    """
    return server.transition(ServerState.DRAINING, stop_reason=reason[:200])


def take_back(server: Server) -> bool:
    """A draining server gets traffic again with the next routing table. False when it is being ended already."""
    return server.transition(ServerState.READY, stop_reason="", drain_epoch=None)


def end(server: Server, reason: str, drain_s: float = remote.STOP_WAIT_S) -> bool:
    """Asks its host to end its process group. False when somebody else was faster."""
    won = server.transition(ServerState.STOPPING, stop_reason=reason[:200])
    if won:
        remote.send_stop(server, drain_s)
    return won
