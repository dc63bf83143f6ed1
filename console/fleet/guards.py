"""What every action asks first: may this person do it, and is what they speak of there?"""

from console.accounts.audit import Actor
from console.accounts.models import Role
from console.fleet.errors import Conflict, Forbidden, NotFound
from console.fleet.models import Deployment, Host, Move, Server


def need(actor: Actor, role: Role, deed: str, field: str | None = None) -> None:
    """Raises Forbidden unless the actor has at least `role`. `deed` completes "you need … to …"."""
    if not actor.can(role):
        raise Forbidden(f"The {role.label.lower()} role is needed to {deed}. Ask an admin for it.", field)


def deployment(deployment_id: int) -> Deployment:
    found = Deployment.objects.filter(pk=deployment_id).first()
    if found is None:
        raise NotFound("This deployment does not exist any more. Go back to the overview.")
    return found


def host(host_id: int) -> Host:
    """The host, its row locked until the transaction ends, so that two starts on it cannot take the same ports."""
    found = Host.objects.select_for_update(no_key=True).filter(pk=host_id).first()
    if found is None:
        raise NotFound("This host does not exist any more. Look at the list of hosts.")
    return found


def lock_host_of(server_id: int) -> Host:
    """Locked like `host`. Raises Conflict for an adopted server, which has none."""
    return host(server(server_id).own_host.pk)


def ours(subject: Server) -> None:
    """Raises Conflict for an adopted server."""
    _ = subject.own_host


def server(server_id: int) -> Server:
    found = Server.objects.with_names().filter(pk=server_id).first()
    if found is None:
        raise NotFound(f"There is no server with id {server_id}. If there was one, it has been deleted.")
    return found


def move(move_id: int) -> Move:
    found = Move.objects.select_related("server", "server__host", "server__deployment").filter(pk=move_id).first()
    if found is None:
        raise NotFound("This move does not exist.")
    return found


def no_open_move(subject: Server, deed: str) -> None:
    opened = subject.open_move()
    if opened is not None:
        raise Conflict(
            f"{subject.name} is being moved from {opened.from_role} to {opened.to_role}. "
            f"Wait for the move to end, or cancel it, then {deed}."
        )


def host_takes_launches(subject: Host) -> None:
    if subject.maintenance:
        raise Conflict(f"Host {subject.name} is in maintenance. End its maintenance, or choose another host.")
    if not subject.address:
        raise Conflict(f"Host {subject.name} has not reported yet. Start its agent, then try again.")
    if not subject.is_reachable:
        age_s = subject.heartbeat_age_s or 0
        raise Conflict(
            f"Host {subject.name} has not reported for {age_s:.0f} s. "
            "Look whether its agent runs and reaches the broker, then try again."
        )
