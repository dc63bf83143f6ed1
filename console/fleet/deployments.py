"""Creating, changing and deleting deployments."""

import secrets
from collections.abc import Iterable
from typing import Any, TypedDict

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from console.accounts.audit import Actor, record
from console.accounts.models import Role
from console.fleet import guards
from console.fleet.errors import Conflict, Forbidden, Invalid, NotFound
from console.fleet.models import Deployment, Engine, Revision, Server
from console.fleet.signals import deployment_changed, server_removed
from console.launch.command import BadArguments, check_arguments, check_environment, is_secret
from console.simulator.arguments import CONNECTORS


class DeploymentData(TypedDict, total=False):
    """The fields of `Deployment` that people set. Creating needs `name`, `model` and `served_model_name`."""

    name: str
    model: str
    served_model_name: str
    engine: str
    engine_args: list[str]
    engine_env: dict[str, str]
    connector: str
    kv_load_failure_policy: str
    server_api_key: str
    require_key: bool
    short_prompt_tokens: int
    busy_decode_streams: int | None
    plain_share_percent: float
    when_no_pair: str
    prefix_affinity: bool
    session_affinity: bool
    retries: int
    wait_for_server_s: float
    max_connections_per_server: int | None
    connect_s: float | None
    first_byte_s: float | None
    idle_s: float | None
    total_s: float | None
    comment_every_s: float | None
    ttft_limit_ms: float | None
    gap_limit_ms: float | None


EDITABLE = frozenset(DeploymentData.__annotations__)
ADMIN_ONLY = ("engine_args", "engine_env", "server_api_key")
START_FIELDS = frozenset(
    {"model", "served_model_name", "engine", "engine_args", "engine_env", "connector", "kv_load_failure_policy"}
)
"""What servers are started with: a change of these makes a new revision, seen by servers at their next start."""
FIXED_WHILE_RUNNING = frozenset({"name", "model", "served_model_name", "engine", "connector", "server_api_key"})
"""Routers and pairs rely on these, so they change only while no server of the deployment runs."""
SECRET = frozenset({"server_api_key"})


def create_deployment(actor: Actor, data: DeploymentData) -> Deployment:
    """Its servers get an API key of their own when none is given. Raises Invalid, Forbidden."""
    guards.need(actor, Role.OPERATOR, "create a deployment")
    _check_known(data)
    _check_admin_fields(actor, [field for field in ADMIN_ONLY if data.get(field)])
    return _create(actor, data, "")


def clone_deployment(deployment_id: int, actor: Actor, name: str, served_model_name: str) -> Deployment:
    """A new deployment without servers and with a key of its own, in all else like the old one."""
    guards.need(actor, Role.OPERATOR, "clone a deployment")
    source = guards.deployment(deployment_id)
    copied: Any = {field: getattr(source, field) for field in EDITABLE - SECRET}
    copied |= {"name": name, "served_model_name": served_model_name}
    return _create(actor, copied, f"clone of {source.name}")


def roll_back(deployment_id: int, number: int, actor: Actor, reason: str = "") -> Deployment:
    """What its servers are started with becomes that of an earlier revision, as a new revision.

    Raises NotFound, and what `update_deployment` raises.
    """
    kept = Revision.objects.filter(deployment_id=deployment_id, number=number).first()
    if kept is None:
        raise NotFound(f"This deployment has no revision {number}.")
    return update_deployment(deployment_id, actor, kept.settings, reason or f"back to revision {number}")


def _create(actor: Actor, data: DeploymentData, reason: str) -> Deployment:
    made = Deployment(**{"server_api_key": secrets.token_urlsafe(24), **_cleaned(data)})
    _validate(made)
    _check_connector(made)
    with transaction.atomic():
        _save_new(made)
        _keep_revision(made, actor, reason)
        record(actor, "deployment.create", f"deployment {made.name}", after=_shown(made, EDITABLE), reason=reason)
        deployment_changed.send(sender=Deployment, deployment=made)
    return made


def update_deployment(deployment_id: int, actor: Actor, changes: DeploymentData, reason: str = "") -> Deployment:
    """Changes only the fields given. Raises Invalid, Forbidden, Conflict (running servers rely on a field)."""
    guards.need(actor, Role.OPERATOR, "change a deployment")
    _check_known(changes)
    with transaction.atomic():
        subject = Deployment.objects.select_for_update(no_key=True).get(pk=guards.deployment(deployment_id).pk)
        changed = {k: v for k, v in _cleaned(changes).items() if getattr(subject, k) != v}
        if not changed:
            return subject
        _check_admin_fields(actor, changed)
        _check_fixed(subject, changed)
        before = _shown(subject, frozenset(changed))
        for field, value in changed.items():
            setattr(subject, field, value)
        _validate(subject)
        if {"engine", "connector"} & changed.keys():
            _check_connector(subject)
        if START_FIELDS & changed.keys():
            subject.revision += 1
            _keep_revision(subject, actor, reason)
        subject.save(update_fields=[*changed, "revision"])
        after = _shown(subject, frozenset(changed))
        record(actor, "deployment.update", f"deployment {subject.name}", before, after, reason)
        deployment_changed.send(sender=Deployment, deployment=subject)
    return subject


def delete_deployment(deployment_id: int, actor: Actor, reason: str = "") -> None:
    """With its servers at rest. Raises Forbidden, Conflict while one runs or has left processes behind."""
    guards.need(actor, Role.ADMIN, "delete a deployment")
    with transaction.atomic():
        subject = guards.deployment(deployment_id)
        servers = list(subject.servers.select_for_update(no_key=True))
        running = [server.name for server in servers if server.holds_gpu]
        if running:
            raise Conflict(f"{', '.join(running)} still run. Stop them, then delete {subject.name}.")
        for server in servers:
            server_id = server.pk
            server.delete()
            server_removed.send(sender=Server, server_id=server_id, deployment_id=subject.pk)
        record(actor, "deployment.delete", f"deployment {subject.name}", _shown(subject, EDITABLE), reason=reason)
        deployment_changed.send(sender=Deployment, deployment=subject)
        subject.delete()


def _check_known(data: DeploymentData) -> None:
    for field in data:
        if field not in EDITABLE:
            raise Invalid(f"A deployment has no field {field}.", field)


def _check_admin_fields(actor: Actor, fields: Iterable[str]) -> None:
    for field in fields:
        if field in ADMIN_ONLY and not actor.can(Role.ADMIN):
            raise Forbidden("Only an admin may set extra engine arguments, environment or the servers' key.", field)


def _check_fixed(subject: Deployment, changed: dict[str, Any]) -> None:
    fixed = sorted(FIXED_WHILE_RUNNING & changed.keys())
    if not fixed:
        return
    running = [server.name for server in subject.servers.all() if server.holds_gpu]
    if running:
        word = fixed[0].replace("_", " ")
        raise Conflict(f"The {word} cannot change while {', '.join(running)} run. Stop them first.", fixed[0])


def _cleaned(data: DeploymentData) -> dict[str, Any]:
    return {key: value.strip() if isinstance(value, str) else value for key, value in data.items()}


def _validate(subject: Deployment) -> None:
    """Raises Invalid with the first field that is wrong. Without a connector it has plain servers only."""
    unchecked = {"engine_args", "engine_env"} if subject.connector else {"engine_args", "engine_env", "connector"}
    try:
        subject.full_clean(validate_unique=False, validate_constraints=False, exclude=unchecked)
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Invalid(messages[0], field) from error
    _check_engine_args(subject.engine_args)
    _check_engine_env(subject.engine_env)
    for field in ("name", "served_model_name"):
        twin = Deployment.objects.filter(**{field: getattr(subject, field)}).exclude(pk=subject.pk).first()
        if twin is not None:
            raise Invalid(f"Deployment {twin.name} has this already. Choose another.", field)


def _check_connector(subject: Deployment) -> None:
    """vLLM takes connectors that we do not know; the simulated engine has its own few."""
    if subject.engine == Engine.SIMULATED and subject.connector and subject.connector not in CONNECTORS:
        raise Invalid(f"The simulated engine has no {subject.connector}. Choose {', '.join(CONNECTORS)}.", "connector")


def _check_engine_args(arguments: object) -> None:
    if not isinstance(arguments, list) or not all(isinstance(argument, str) for argument in arguments):
        raise Invalid("Give the extra arguments as a list of words.", "engine_args")
    try:
        check_arguments(arguments)
    except BadArguments as error:
        raise Invalid(f"{error}. Leave it out.", "engine_args") from error


def _check_engine_env(environment: object) -> None:
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise Invalid("Give the extra environment as names with texts.", "engine_env")
    try:
        check_environment(environment)
    except BadArguments as error:
        raise Invalid(f"{error}.", "engine_env") from error


def _save_new(made: Deployment) -> None:
    try:
        with transaction.atomic():
            made.save(force_insert=True)
    except IntegrityError as error:  # somebody created its twin between the check and here
        raise Invalid("A deployment of this name, or serving this model name, exists already.", "name") from error


def _keep_revision(subject: Deployment, actor: Actor, reason: str) -> None:
    Revision.objects.create(
        deployment=subject,
        number=subject.revision,
        made_by=actor.name,
        reason=reason[:400],
        settings={field: getattr(subject, field) for field in sorted(START_FIELDS)},
    )


def _shown(subject: Deployment, fields: frozenset[str]) -> dict[str, Any]:
    """For the audit trail: of secrets only whether they are set."""
    shown = {field: getattr(subject, field) for field in sorted(fields)}
    if "server_api_key" in shown:
        shown["server_api_key"] = "set" if shown["server_api_key"] else ""
    if "engine_env" in shown:
        shown["engine_env"] = {name: "set" if is_secret(name) else value for name, value in shown["engine_env"].items()}
    return shown
