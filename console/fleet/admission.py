"""Machines that join as hosts with a join token, and taking back what they got."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from console import valkey
from console.accounts import audit, join_tokens
from console.accounts.audit import Actor
from console.accounts.models import HostLogin, JoinToken, Role
from console.fleet import broker_address, guards
from console.fleet.errors import Conflict, Forbidden, Invalid, Unavailable
from console.fleet.models import Host, name_validator
from console.fleet.signals import host_changed
from console.launch import logins

_SHA256 = re.compile(r"[0-9a-f]{64}")
SHARED_WARNING = (
    "The broker does not let the console make a login for this host, so it uses the console's own: "
    "whoever has it can launch processes on every host."
)


class NameTaken(Conflict):
    code = "name_taken"


class OtherHost(Forbidden):
    code = "other_host"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a machine that joins says, and from where. `secret_sha256`: of a secret that it made and keeps."""

    token: str
    name: str
    secret_sha256: str
    caller: str
    console_name: str


@dataclass(frozen=True, slots=True)
class Admission:
    """`broker` holds a login only if the host has none of its own (`username` is empty then)."""

    host: str
    broker: str
    username: str
    warning: str


def admit(asked: Asked) -> Admission:
    """Asking again with the same secret, because an answer was lost, gets the same answer.

    Everything is checked before anything changes. Raises Unauthorized for the token, OtherHost, NameTaken, Invalid,
    BrokerNotOpen, and Unavailable while the broker is away.
    """
    token = join_tokens.find(asked.token)
    _check(asked, token)
    broker_address.for_caller(asked.caller, asked.console_name, with_login=False)
    try:
        is_own = logins.are_possible()
        _settle(asked, token, is_own)
        if is_own:
            logins.grant(asked.name, asked.secret_sha256)
    except valkey.Down as error:
        raise Unavailable("The console's broker does not answer. Start it, then try again.") from error
    return Admission(
        host=asked.name,
        broker=broker_address.for_caller(asked.caller, asked.console_name, with_login=not is_own),
        username=logins.username(asked.name) if is_own else "",
        warning="" if is_own else SHARED_WARNING,
    )


def revoke(host_id: int, actor: Actor, reason: str = "") -> Host:
    """Its agent is cut off and its reports are refused; its servers go on. A second time changes nothing."""
    guards.need(actor, Role.ADMIN, "revoke a host's login")
    with transaction.atomic():
        host = guards.host(host_id)
        login = HostLogin.objects.filter(host=host).first()
        if login is None:
            raise Conflict(f"{host.name} joined with the broker's own password. Change that to lock it out.")
        if login.take_back():
            audit.record(actor, "host.revoke", f"host {host.name}", {"token": str(login.token or "")}, reason=reason)
            host_changed.send(sender=Host, host=host)
            transaction.on_commit(partial(logins.take_back, host.name))
    return host


def login_of(host: Host) -> Literal["own", "shared", "revoked"] | None:
    """None: it joined by the broker's own address, without a join token."""
    login: HostLogin | None = getattr(host, "login", None)
    if login is None:
        return None
    if login.revoked_at is not None:
        return "revoked"
    return "own" if login.is_own else "shared"


def keep_logins() -> None:
    """The broker forgets logins when it restarts: what the rows say is made good, each second."""
    rows = HostLogin.objects.filter(is_own=True, revoked_at=None).values_list("host__name", "hashed")
    logins.keep(dict(rows))


def _check(asked: Asked, token: JoinToken) -> None:
    try:
        name_validator(asked.name)
    except ValidationError as error:
        raise Invalid(error.messages[0], "name") from error
    if not _SHA256.fullmatch(asked.secret_sha256):
        raise Invalid("Give the SHA-256 of the host's secret, 64 hexadecimal digits.", "secret_sha256")
    if token.host_name and token.host_name != asked.name:
        raise OtherHost(f"This join token is for the host {token.host_name}. Start the agent with that --name.")


def _settle(asked: Asked, token: JoinToken, is_own: bool) -> None:
    with transaction.atomic():
        host = guards.host(Host.objects.get_or_create(name=asked.name)[0].pk)
        login = HostLogin.objects.filter(host=host).first()
        if _is_repeated(asked, token, login):
            return
        join_tokens.use(token)
        _refuse_taken_name(host, login, token)
        fields = {
            "token": token,
            "name": host.name,
            "hashed": asked.secret_sha256,
            "prefix": asked.secret_sha256[:8],
            "is_own": is_own,
            "created_at": timezone.now(),
            "revoked_at": None,
        }
        HostLogin.objects.update_or_create(host=host, defaults=fields)
        who = Actor(f"join token {token.name} ({token.prefix}…)"[:150], Role.VIEWER)
        audit.record(who, "host.join", f"host {host.name}", after={"from": asked.caller, "own_login": is_own})
        host_changed.send(sender=Host, host=host)


def _is_repeated(asked: Asked, token: JoinToken, login: HostLogin | None) -> bool:
    if login is None or login.revoked_at is not None:
        return False
    return login.hashed == asked.secret_sha256 and login.token_id == token.pk


def _refuse_taken_name(host: Host, login: HostLogin | None, token: JoinToken) -> None:
    """A token made for this very name may replace a machine; another token takes nobody's place."""
    if token.host_name == host.name:
        return
    is_taken = login.revoked_at is None if login else host.is_reachable
    if is_taken:
        raise NameTaken(
            f"A host {host.name} has joined already. Choose another --name; or, to replace that machine, "
            f"use a join token that is made for the host name {host.name}, or revoke its login first."
        )
