"""Hosts: registering, maintenance, and whether silence is theirs or ours."""

from datetime import timedelta
from functools import partial

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from console.accounts.audit import Actor, record
from console.accounts.models import Role
from console.fleet import guards
from console.fleet.errors import Conflict, Invalid
from console.fleet.models import Host, name_validator
from console.fleet.signals import host_changed
from console.launch import logins


def register_host(actor: Actor, name: str) -> Host:
    """A host that has not reported yet. One that nobody registered appears by itself at its agent's first report."""
    guards.need(actor, Role.ADMIN, "register a host")
    name = name.strip()
    try:
        name_validator(name)
    except ValidationError as error:
        raise Invalid(error.messages[0], "name") from error
    with transaction.atomic():
        host, created = Host.objects.get_or_create(name=name)
        if not created:
            raise Invalid(f"There is a host {name} already. Choose another name.", "name")
        record(actor, "host.register", f"host {name}")
        host_changed.send(sender=Host, host=host)
    return host


def remove_host(host_id: int, actor: Actor, reason: str = "") -> None:
    """Raises Conflict while servers belong to it. Its login at the broker goes with it.

    An agent that still runs with the broker's own password makes it appear again.
    """
    guards.need(actor, Role.ADMIN, "remove a host")
    with transaction.atomic():
        host = guards.host(host_id)
        servers = list(host.servers.values_list("name", flat=True))
        if servers:
            raise Conflict(f"{', '.join(servers)} belong to host {host.name}. Delete them, then remove the host.")
        record(actor, "host.remove", f"host {host.name}", {"address": host.address}, reason=reason)
        host_changed.send(sender=Host, host=host)
        transaction.on_commit(partial(logins.take_back, host.name))
        host.delete()


def set_maintenance(host_id: int, on: bool, actor: Actor, reason: str = "") -> Host:
    """In maintenance a host gets no new launches; what runs there goes on."""
    guards.need(actor, Role.OPERATOR, "change a host's maintenance")
    with transaction.atomic():
        host = guards.host(host_id)
        if host.maintenance == on:
            return host
        Host.objects.filter(pk=host.pk).update(maintenance=on)
        record(actor, "host.maintenance", f"host {host.name}", {"on": host.maintenance}, {"on": on}, reason)
        host.maintenance = on
        host_changed.send(sender=Host, host=host)
    return host


def suspect_ourselves() -> bool:
    """All hosts that may report and ever did are silent: far more likely the broker, the worker or our network.

    While this holds, nothing is concluded about hosts or servers.
    """
    seen = Host.objects.filter(login__revoked_at=None).exclude(last_seen_at=None)
    limit = timezone.now() - timedelta(seconds=settings.HOST_UNREACHABLE_AFTER_S)
    return seen.exists() and not seen.filter(last_seen_at__gte=limit).exists()
