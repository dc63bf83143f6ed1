"""What people do with servers: start, stop, take a stop back. The pages and the REST API both call these.

Each asks for the actor's role, checks everything before it changes anything, and writes the audit trail in the same
transaction. Errors are those of `fleet.errors`.
"""

from collections.abc import Sequence

from django.db import transaction

from console.accounts.audit import Actor, record
from console.accounts.models import Role
from console.fleet import guards, starting
from console.fleet.admission import revoke as revoke_host
from console.fleet.adoption import adopt, let_go
from console.fleet.deployments import (
    DeploymentData,
    clone_deployment,
    create_deployment,
    delete_deployment,
    roll_back,
    update_deployment,
)
from console.fleet.draining import begin_drain, end, take_back
from console.fleet.drills import drill
from console.fleet.errors import Conflict
from console.fleet.hosts import register_host, remove_host, set_maintenance
from console.fleet.models import Deployment, Host, Server
from console.fleet.move_preview import losing
from console.fleet.servers import add_server, check_gpus, check_role, delete_server
from console.fleet.states import ON_ITS_WAY_UP, ServerState
from console.launch import command, remote
from console.launch.contracts import LaunchSpec

__all__ = [
    "DeploymentData",
    "add_server",
    "adopt",
    "cancel_stop",
    "clone_deployment",
    "create_deployment",
    "delete_deployment",
    "delete_server",
    "drill",
    "launch_preview",
    "let_go",
    "register_host",
    "remove_host",
    "revoke_host",
    "roll_back",
    "set_maintenance",
    "start",
    "stop",
    "update_deployment",
]

S = ServerState


def launch_preview(
    deployment: Deployment, host: Host, role: str, gpu_indexes: Sequence[int], name: str = ""
) -> LaunchSpec:
    """The exact command and environment that a new server would get now, secrets masked. Starts nothing."""
    check_role(deployment, role)
    gpus = check_gpus(host, gpu_indexes)
    plan = starting.Plan(deployment=deployment, host=host, role=role, gpu_indexes=gpus, name=name)
    return command.masked(starting.spec_for(plan))


def start(server_id: int, actor: Actor, reason: str = "") -> Server:
    """Asks its host to start it. Of two starts at once one wins, the other raises Conflict."""
    guards.need(actor, Role.OPERATOR, "start a server")
    with transaction.atomic():
        guards.lock_host_of(server_id)
        server = guards.server(server_id)
        guards.no_open_move(server, "start it")
        old_state = server.state
        if not server.is_at_rest:
            raise Conflict(_why_not_start(server))
        if not starting.begin(server, server.role):
            raise Conflict(f"Somebody else acted on {server.name} just now. Look again, then decide.")
        after = {"state": server.state, "generation": server.generation, "role": server.role}
        record(actor, "server.start", f"server {server.name}", {"state": old_state}, after, reason)
    return server


def stop(server_id: int, actor: Actor, reason: str = "", force: bool = False, confirmed: bool = True) -> Server:
    """A serving server is drained first; `force` cuts its running requests off.

    On a failed server it ends the processes that were left behind. With `force` on a server whose host is silent it
    only gives the server up: should the host come back with the process, that is ended then.

    `confirmed`: False raises Conflict when traffic would notice the loss. Pages ask first; who calls the API means it.
    """
    guards.need(actor, Role.OPERATOR, "stop a server")
    with transaction.atomic():
        server = guards.server(server_id)
        guards.ours(server)
        _no_move_in_the_way(server)
        old_state = server.state
        if not confirmed and (noticed := losing(server)):
            raise Conflict(" ".join([*noticed, "Confirm it to go ahead."]), "confirmed")
        if not _stop(server, reason or f"stopped by {actor.name}", force):
            raise Conflict(f"Somebody else acted on {server.name} just now. Look again, then decide.")
        before, after = {"state": old_state}, {"state": server.state, "force": force}
        record(actor, "server.stop", f"server {server.name}", before, after, reason)
    return server


def cancel_stop(server_id: int, actor: Actor) -> Server:
    """Takes a draining server back into traffic. Raises Conflict once it is being ended."""
    guards.need(actor, Role.OPERATOR, "take a server back into traffic")
    with transaction.atomic():
        server = guards.server(server_id)
        guards.no_open_move(server, "look again")
        if server.state != S.DRAINING or not take_back(server):
            raise Conflict(f"{server.name} is {server.state}. Only a draining server can be taken back.")
        record(actor, "server.cancel_stop", f"server {server.name}", {"state": S.DRAINING}, {"state": server.state})
    return server


def _stop(server: Server, reason: str, force: bool) -> bool:
    state = ServerState(server.state)
    if state == S.STOPPED or (state == S.FAILED and not server.holds_gpu):
        raise Conflict(f"{server.name} is {state}: nothing of it runs.")
    if state == S.STOPPING and not (force and not server.own_host.is_reachable):
        raise Conflict(f"{server.name} is being stopped already.")
    if state == S.DRAINING and not force:
        raise Conflict(f"{server.name} is draining already. Force the stop to cut its running requests off.")
    if force and not server.own_host.is_reachable and state in (S.UNREACHABLE, S.STOPPING):
        gone = {**server.observed, "alive": False, "group_pids": []}
        return server.transition(S.STOPPED, stop_reason=f"{reason}; its host did not answer"[:200], observed=gone)
    if state == S.READY:
        if not begin_drain(server, reason):
            return False
        if not force:
            return True
    return end(server, reason, drain_s=0.0 if force else remote.STOP_WAIT_S)


def _no_move_in_the_way(server: Server) -> None:
    """A move that only drains is cancelled, not stopped over; one that starts its server anew may be stopped."""
    if server.state in (S.DRAINING, S.STOPPING, S.STOPPED):
        guards.no_open_move(server, "stop it")


def _why_not_start(server: Server) -> str:
    if server.state in ON_ITS_WAY_UP:
        return f"{server.name} is on its way up already ({server.state})."
    if server.state == S.READY:
        return f"{server.name} runs already."
    if server.state == S.DRAINING:
        return f"{server.name} is draining. Take the stop back, or wait until it is stopped."
    return f"{server.name} is {server.state}. Wait until it is stopped, then start it."
