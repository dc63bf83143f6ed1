"""Drills: a simulated server's engine is killed on purpose, to see what a crash looks like and what it costs."""

from django.db import transaction

from console.accounts.audit import Actor, record
from console.accounts.models import Role
from console.fleet import guards
from console.fleet.errors import Conflict
from console.fleet.models import Engine, KvLoadFailurePolicy, Server
from console.fleet.states import ServerRole, ServerState
from console.launch import remote


def why_not(server: Server) -> str | None:
    """A sentence, or None when a drill may be held on it now."""
    engine = server.launch_spec.get("engine", server.deployment.engine)
    if server.host is None or engine != Engine.SIMULATED:
        return f"{server.name} is no simulated server of ours. Drills are held on simulated servers only."
    if server.state != ServerState.READY:
        return f"{server.name} is {server.state}. A drill is held on a ready server."
    if not server.host.is_reachable:
        return f"Host {server.host.name} does not report, so nobody would hear of the drill. Look at its agent first."
    return None


def consequences(server: Server) -> list[str]:
    """What will happen, in the order in which it is seen."""
    return [
        f"The engine of {server.name} is killed without warning, as a crash would. It shows as failed within seconds "
        "and stays so until you start it.",
        _seen_by_requests(server),
        *_last_of_its_role(server),
    ]


def drill(server_id: int, actor: Actor, reason: str = "") -> Server:
    """Asks its host to kill its engine. Raises Forbidden, NotFound, Conflict when it cannot be held now."""
    guards.need(actor, Role.OPERATOR, "hold a drill")
    with transaction.atomic():
        server = guards.server(server_id)
        guards.no_open_move(server, "hold the drill")
        if problem := why_not(server):
            raise Conflict(problem)
        before = {"state": server.state, "role": server.role, "generation": server.generation}
        record(actor, "server.drill", f"server {server.name}", before, reason=reason)
        remote.send_drill(server, actor.name)
    return server


def _seen_by_requests(server: Server) -> str:
    if server.role == ServerRole.PREFILL:
        lost = "computes the prompt itself"
        if server.deployment.kv_load_failure_policy == KvLoadFailurePolicy.FAIL:
            lost = "fails, and is tried once without the hand-off"
        return (
            "Prompts that it computes are tried elsewhere, or served without splitting; a request whose hand-off is "
            f"lost {lost}. Streams on decode servers go on."
        )
    return "Streams that run on it break off with an error; requests without a first token are tried elsewhere."


def _last_of_its_role(server: Server) -> list[str]:
    ready = Server.objects.filter(deployment=server.deployment, state=ServerState.READY).exclude(pk=server.pk)
    if not ready.exists():
        return ["It is the only ready server: every request fails until you start it again."]
    if server.role != ServerRole.PLAIN and not ready.filter(role=server.role).exists():
        return [f"It is the last ready {server.role} server: nothing can be split until you start it again."]
    return []
