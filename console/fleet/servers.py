"""Adding servers to a deployment and taking them away."""

from collections.abc import Sequence

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from console.accounts.audit import Actor, record
from console.accounts.models import Role
from console.fleet import guards
from console.fleet.errors import Conflict, Invalid
from console.fleet.models import Deployment, Host, Server, name_validator
from console.fleet.naming import next_name
from console.fleet.signals import server_changed, server_removed
from console.fleet.states import ServerRole, ServerState


def add_server(
    actor: Actor, *, deployment_id: int, host_id: int, role: str, gpu_indexes: Sequence[int], name: str = ""
) -> Server:
    """A stopped server; `actions.start` starts it. Without a name it gets the deployment's and a number.

    Raises Invalid (with the field), Forbidden, NotFound.
    """
    guards.need(actor, Role.OPERATOR, "add a server")
    with transaction.atomic():
        deployment = guards.deployment(deployment_id)
        host = guards.host(host_id)
        check_role(deployment, role)
        gpus = check_gpus(host, gpu_indexes)
        made = Server(
            deployment=deployment, host=host, role=role, gpu_indexes=gpus, name=free_name(deployment, name.strip())
        )
        _save_new(made)
        after = {"deployment": deployment.name, "host": host.name, "role": role, "gpus": gpus}
        record(actor, "server.add", f"server {made.name}", after=after)
        server_changed.send(sender=Server, server=made, old_state=ServerState.STOPPED)
    return made


def delete_server(server_id: int, actor: Actor, reason: str = "") -> None:
    """Raises Forbidden, NotFound, Conflict while it runs, is being moved or has left processes behind."""
    guards.need(actor, Role.OPERATOR, "delete a server")
    with transaction.atomic():
        guards.lock_host_of(server_id)
        server = guards.server(server_id)
        guards.no_open_move(server, "delete it")
        if server.holds_gpu:
            raise Conflict(f"{server.name} still runs. Stop it, then delete it.")
        before = {"deployment": server.deployment.name, "host": server.own_host.name, "role": server.role}
        record(actor, "server.delete", f"server {server.name}", before, reason=reason)
        deployment_id = server.deployment_id
        server.delete()
        server_removed.send(sender=Server, server_id=server_id, deployment_id=deployment_id)


def check_role(deployment: Deployment, role: str) -> None:
    if role not in ServerRole.values:
        raise Invalid(f"{role!r} is not a role. Choose plain, prefill or decode.", "role")
    if role != ServerRole.PLAIN and not deployment.connector:
        raise Invalid(
            f"Deployment {deployment.name} has no KV connector, which a {role} server needs. Set one first.", "role"
        )


def check_gpus(host: Host, gpu_indexes: Sequence[int]) -> list[int]:
    """The indexes in order. Empty is right only on a host that reported, and without GPUs."""
    if host.last_seen_at is None:
        raise Invalid(
            f"Host {host.name} has never reported, so its GPUs and its address are not known. Start its agent on the "
            "machine (the page Hosts shows the command), or choose another host.",
            "host",
        )
    present = set(host.gpus.values_list("index", flat=True))
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in gpu_indexes):
        raise Invalid("Give GPU indexes as whole numbers.", "gpu_indexes")
    wanted = sorted(set(gpu_indexes))
    if len(wanted) != len(gpu_indexes):
        raise Invalid("A GPU is named twice. Name each once.", "gpu_indexes")
    missing = [index for index in wanted if index not in present]
    if missing:
        has = f"it has {', '.join(map(str, sorted(present)))}" if present else "it has none"
        raise Invalid(f"Host {host.name} has no GPU {missing[0]}: {has}.", "gpu_indexes")
    if present and not wanted:
        raise Invalid(f"Choose at least one GPU of host {host.name}.", "gpu_indexes")
    return wanted


def free_name(deployment: Deployment, name: str) -> str:
    """The given one, or the next of the deployment. Raises Invalid when it is no name or taken."""
    if not name:
        return next_name(deployment.name, set(Server.objects.values_list("name", flat=True)))
    try:
        name_validator(name)
    except ValidationError as error:
        raise Invalid(error.messages[0], "name") from error
    if Server.objects.filter(name=name).exists():
        raise Invalid(f"There is a server {name} already. Choose another name.", "name")
    return name


def _save_new(made: Server) -> None:
    try:
        with transaction.atomic():
            made.save(force_insert=True)
    except IntegrityError as error:  # somebody took the name between the check and here
        raise Invalid(f"There is a server {made.name} already. Choose another name.", "name") from error
