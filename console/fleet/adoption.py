"""Adopting a server that someone else started: routed and watched like ours, but never started, stopped or moved."""

from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.utils import timezone

from console.accounts.audit import SYSTEM, Actor, record
from console.accounts.models import Role
from console.fleet import guards
from console.fleet.draining import begin_drain
from console.fleet.errors import Conflict, Invalid
from console.fleet.models import Deployment, Server
from console.fleet.servers import check_role, free_name
from console.fleet.signals import server_changed, server_removed
from console.fleet.states import ServerRole, ServerState
from console.launch import outside, queueing
from console.launch.introduction import NotAdoptable, Told, introduce
from console.launch.outside import Place

S = ServerState
URL_LIMIT, KEY_LIMIT = 300, 200


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server that was asked what it is, and fits."""

    deployment: Deployment
    place: Place
    role: ServerRole
    told: Told
    name: str
    api_key: str


def adopt(
    actor: Actor, deployment_id: int, url: str, role: str | None = None, name: str = "", api_key: str = ""
) -> Server:
    """Asks it what it is, and takes it on when that fits; it gets traffic once it and its pairs are tried out."""
    return take_on(actor, ask(actor, deployment_id, url, role, name, api_key))


def ask(
    actor: Actor, deployment_id: int, url: str, role: str | None = None, name: str = "", api_key: str = ""
) -> Candidate:
    """Writes nothing. Call it outside of a transaction: it takes some milliseconds, at worst ten seconds.

    `role`: needed when it has a KV connector and does not tell its role.
    Raises Invalid (with the field), Forbidden, NotFound, Conflict (the address is known already).
    """
    guards.need(actor, Role.OPERATOR, "adopt a server")
    deployment = guards.deployment(deployment_id)
    place = _place(url)
    _not_known(place)
    _check_key(api_key)
    if role:
        check_role(deployment, role)
    try:
        told = introduce(place, deployment.served_model_name, api_key)
    except NotAdoptable as error:
        raise Invalid(error.message, error.field) from error
    return Candidate(deployment, place, _role(deployment, told, role or ""), told, name.strip(), api_key)


def take_on(actor: Actor, candidate: Candidate) -> Server:
    """Raises Invalid (its name), Conflict when somebody was faster with its name or address."""
    with transaction.atomic():
        made = _save_new(candidate)
        told, place = candidate.told, candidate.place
        after = {"deployment": made.deployment.name, "url": place.url, "role": made.role, "version": told["version"]}
        record(actor, "server.adopt", f"server {made.name}", after=after)
        server_changed.send(sender=Server, server=made, old_state=S.STOPPED)
        transaction.on_commit(lambda: queueing.verify_server(made.pk, made.generation))
    return made


def let_go(server_id: int, actor: Actor, reason: str = "", force: bool = False) -> Server | None:
    """Out of routing; its row goes when its last request has ended, with `force` at once. The process goes on.

    None when it is gone already. Raises Forbidden, NotFound, Conflict (it is ours, or on its way out).
    """
    guards.need(actor, Role.OPERATOR, "let a server go")
    with transaction.atomic():
        server = guards.server(server_id)
        if not server.is_adopted:
            raise Conflict(f"{server.name} was started from here. Stop it, then delete it.")
        if server.state == S.DRAINING and not force:
            raise Conflict(f"{server.name} is on its way out already. Force it to wait no longer.")
        before, after = {"state": server.state, "url": server.adopted_url}, {"force": force}
        record(actor, "server.let_go", f"server {server.name}", before, after, reason)
        if server.state != S.READY or force:
            _remove(server)
            return None
        if not begin_drain(server, reason or f"let go by {actor.name}"):
            raise Conflict(f"Somebody else acted on {server.name} just now. Look again, then decide.")
    return server


def remove_drained(server: Server) -> None:
    """Its last request has ended, or its process has. Call it in a transaction; of two at once one does it."""
    if _remove(server, state=S.DRAINING):
        record(SYSTEM, "server.let_go_done", f"server {server.name}", {"url": server.adopted_url})


def _remove(server: Server, **condition: ServerState) -> bool:
    server_id, deployment_id = server.pk, server.deployment_id
    removed, _ = Server.objects.filter(pk=server_id, **condition).delete()
    if removed:
        server_removed.send(sender=Server, server_id=server_id, deployment_id=deployment_id)
    return bool(removed)


def _place(url: str) -> Place:
    if len(url) > URL_LIMIT:
        raise Invalid(f"An address has at most {URL_LIMIT} characters.", "url")
    try:
        return outside.parse(url)
    except outside.BadAddress as error:
        raise Invalid(str(error), "url") from error


def _not_known(place: Place) -> None:
    """By port and IP address, so that localhost and 127.0.0.1 are the same. Raises Invalid, Conflict."""
    try:
        addresses = outside.resolve(place)
    except outside.BadAddress as error:
        raise Invalid(str(error), "url") from error
    for other in Server.objects.with_names():
        if not other.url or not (other.is_adopted or other.holds_gpu):
            continue
        theirs = outside.parse(other.url)
        if theirs.port != place.port or theirs.prefix != place.prefix:
            continue
        if theirs.host == place.host or addresses & _addresses(theirs):
            raise Conflict(f"{place.url} is {other.name} of deployment {other.deployment.name} already.", "url")


def _addresses(place: Place) -> frozenset[str]:
    try:
        return outside.resolve(place)
    except outside.BadAddress:
        return frozenset()


def _check_key(api_key: str) -> None:
    if len(api_key) > KEY_LIMIT or not all("!" <= character <= "~" for character in api_key):
        raise Invalid(f"An API key has at most {KEY_LIMIT} printable characters without spaces.", "api_key")


def _role(deployment: Deployment, told: Told, asked: str) -> ServerRole:
    """What it is, by what it told and what the operator says. Raises Invalid when the two do not fit."""
    if told["role"] and asked and asked != told["role"]:
        raise Invalid(f"It says that it is a {told['role']} server. Adopt it as that.", "role")
    if not told["connector"]:
        if asked in (ServerRole.PREFILL, ServerRole.DECODE) and "nixl" in deployment.connector.lower():
            raise Invalid(f"It has no KV connector, which a {asked} server needs. Adopt it as plain.", "role")
        return ServerRole(asked or ServerRole.PLAIN)
    if not (role := asked or told["role"]):
        raise Invalid("It has a KV connector, but does not say its role. Choose prefill or decode.", "role")
    check_role(deployment, role)
    return ServerRole(role)


def _save_new(candidate: Candidate) -> Server:
    made = Server(
        deployment=candidate.deployment,
        host=None,
        name=free_name(candidate.deployment, candidate.name),
        role=candidate.role,
        state=S.VERIFYING,
        generation=1,
        adopted_url=candidate.place.url,
        adopted_api_key=candidate.api_key,
        told=candidate.told,
        started_at=timezone.now(),
        max_model_len=candidate.told["max_model_len"],
    )
    try:
        with transaction.atomic():
            made.save(force_insert=True)
    except IntegrityError as error:  # somebody took the name or the address between the check and here
        raise Conflict(f"{made.name} or {made.adopted_url} was taken just now. Look again, then decide.") from error
    return made
