"""Emptying a host: no new launches, and its servers leave traffic one after the other's requests have ended."""

from typing import TypedDict

from django.db import transaction

from console.accounts.audit import Actor, record
from console.accounts.models import Role
from console.fleet import actions, guards, hosts
from console.fleet.errors import Conflict
from console.fleet.models import Host, Server
from console.fleet.states import MOVE_OPEN, ON_ITS_WAY_UP, ServerRole, ServerState


class DrainPreview(TypedDict):
    host: str
    servers: list[str]
    """Those that will be stopped, serving ones after their requests have ended."""
    refused: list[str]
    consequences: list[str]
    """What traffic will see; not empty: it has to be confirmed."""


def preview(host: Host) -> DrainPreview:
    running = _running(host)
    moving = [server for server in running if server.moves.filter(status__in=MOVE_OPEN).exists()]
    return DrainPreview(
        host=host.name,
        servers=[server.name for server in running],
        refused=[f"{server.name} is being moved. Wait for the move to end, or cancel it." for server in moving],
        consequences=_consequences(host, running),
    )


def drain_host(host_id: int, actor: Actor, reason: str = "", confirmed: bool = False) -> DrainPreview:
    """Sets maintenance and stops what runs there. Raises Conflict when refused, or not confirmed."""
    guards.need(actor, Role.OPERATOR, "drain a host")
    with transaction.atomic():
        host = guards.host(host_id)
        seen = preview(host)
        if seen["refused"]:
            raise Conflict(" ".join(seen["refused"]))
        if seen["consequences"] and not confirmed:
            raise Conflict(" ".join([*seen["consequences"], "Confirm it to go ahead."]), "confirmed")
        hosts.set_maintenance(host_id, True, actor, reason)
        for server in _running(host):
            actions.stop(server.pk, actor, reason or f"host {host.name} is drained")
        record(actor, "host.drain", f"host {host.name}", after={"servers": seen["servers"]}, reason=reason)
    return seen


def _running(host: Host) -> list[Server]:
    states = [*ON_ITS_WAY_UP, ServerState.READY]
    return list(Server.objects.with_names().filter(host=host, state__in=states))


def _consequences(host: Host, running: list[Server]) -> list[str]:
    """For each role of each deployment whose last ready server stands on this host."""
    found = []
    for deployment in {server.deployment for server in running}:
        ready = Server.objects.filter(deployment=deployment, state=ServerState.READY)
        before = set(ready.values_list("role", flat=True))
        after = set(ready.exclude(host=host).values_list("role", flat=True))
        if before and not after:
            found.append(f"{deployment.name} has no ready server elsewhere: its requests fail.")
        elif lost := sorted(before - after - {ServerRole.PLAIN}):
            found.append(f"{deployment.name} loses its last ready {' and '.join(lost)} server: nothing can be split.")
    return sorted(found)
