"""Deployments."""

from datetime import datetime
from typing import Any, cast

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.responses import Status
from pydantic import Field

from console.api import choices, find
from console.api.changes import change
from console.api.identity import ADMIN, OPERATOR, VIEWER, actor_of
from console.api.shapes import ChangeIn, Count, Deleted, Page, Paging, Reason, ServerRef, Text, Whole, page, server_refs
from console.fleet import actions
from console.fleet.actions import DeploymentData
from console.fleet.models import Deployment, Engine, KvLoadFailurePolicy, Revision, WhenNoPair, limits
from console.launch.command import MASK, is_secret

router = Router(tags=["deployments"])

NOT_FIELDS = {"dry_run", "reason"}


class DeploymentOut(Schema):
    name: str
    model: str
    served_model_name: str
    engine: Engine
    engine_args: list[str]
    engine_env: dict[str, str] = Field(description="Values that count as secret by their name are masked.")
    connector: str
    kv_load_failure_policy: KvLoadFailurePolicy
    require_key: bool
    short_prompt_tokens: int
    busy_decode_streams: int | None
    plain_share_percent: float
    when_no_pair: WhenNoPair
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
    created_at: datetime
    revision: int = Field(description="Grows with every change of what its servers are started with.")
    servers: list[ServerRef]


def _limit(span: limits.Span, description: str) -> Any:
    return Field(None, ge=span.least, le=span.most, description=description)


class Policy(ChangeIn):
    """What creating and changing have in common. Meanings and limits are the domain's."""

    engine: choices.Engine = Engine.VLLM
    engine_args: list[Text] = Field([], max_length=200, description="Extra arguments for every server. Admins only.")
    engine_env: dict[Text, Text] = Field({}, description="Extra environment for every server. Admins only.")
    connector: Text = Field("NixlConnector", max_length=60)
    kv_load_failure_policy: choices.KvLoadFailurePolicy = KvLoadFailurePolicy.RECOMPUTE
    require_key: bool = Field(True, description="Clients must send an inference key of this deployment.")
    short_prompt_tokens: Count = Field(0, description="Prompts below it go straight to a decode server; 0: none.")
    busy_decode_streams: Count | None = Field(None, description="From so many streams on, short prompts are split too.")
    plain_share_percent: float = Field(0, ge=0, le=100)
    when_no_pair: choices.WhenNoPair = WhenNoPair.FALLBACK
    prefix_affinity: bool = True
    session_affinity: bool = True
    retries: Whole = Field(2, ge=0, le=5)
    wait_for_server_s: float = Field(0, ge=0, le=600)
    max_connections_per_server: Whole | None = _limit(
        limits.CONNECTIONS, "Requests under way at one server; null: 2048."
    )
    connect_s: float | None = _limit(limits.CONNECT_S, "Time limit for reaching a server; null: 3 s.")
    first_byte_s: float | None = _limit(
        limits.FIRST_BYTE_S, "Time limit for the first byte of a server's answer, its last if not streamed; null: none."
    )
    idle_s: float | None = _limit(limits.IDLE_S, "Time limit for a silence within an answer; null: 300 s.")
    total_s: float | None = _limit(limits.TOTAL_S, "Time limit for a whole request, with all its attempts; null: none.")
    comment_every_s: float | None = _limit(
        limits.COMMENT_EVERY_S,
        "A stream gets a comment line after each such silence before its first token; null: none.",
    )
    ttft_limit_ms: float | None = Field(None, ge=1, description="Objective for the time to first token.")
    gap_limit_ms: float | None = Field(None, ge=1, description="Objective for a token gap.")


class DeploymentIn(Policy):
    name: Text = Field(min_length=1, max_length=63)
    model: Text = Field(min_length=1, max_length=500, description="Model path or repository name.")
    served_model_name: Text = Field("", max_length=200, description="What clients ask for; the name when empty.")
    server_api_key: Text = Field("", max_length=200, description="One is made when empty. Never shown. Admins only.")


class DeploymentChanges(Policy):
    """Only the fields that are sent change."""

    name: Text = Field("", min_length=1, max_length=63)
    model: Text = Field("", min_length=1, max_length=500)
    served_model_name: Text = Field("", min_length=1, max_length=200)
    server_api_key: Text = Field("", min_length=1, max_length=200, description="Never shown. Admins only.")
    reason: Reason = ""


class RevisionOut(Schema):
    number: int
    made_at: datetime
    made_by: str
    reason: str
    settings: dict[str, Any] = Field(description="What servers were started with; secret values are masked.")


class RollBackIn(ChangeIn):
    revision: Count = Field(ge=1)
    reason: Reason = ""


class CloneIn(ChangeIn):
    name: Text = Field(min_length=1, max_length=63)
    served_model_name: Text = Field("", max_length=200, description="The name when empty.")


class DeploymentFilters(Paging):
    engine: Engine | None = None


@router.get("", response=Page[DeploymentOut], auth=VIEWER)
def list_deployments(request: HttpRequest, filters: Query[DeploymentFilters]) -> dict[str, Any]:
    rows = Deployment.objects.prefetch_related("servers")
    if filters.engine is not None:
        rows = rows.filter(engine=filters.engine)
    return page(rows, filters, deployment_out)


@router.post("", response={201: DeploymentOut}, auth=OPERATOR)
@change()
def create_deployment(request: HttpRequest, body: DeploymentIn) -> Status[DeploymentOut]:
    data = body.dict(exclude_unset=True, exclude=NOT_FIELDS)
    data["served_model_name"] = body.served_model_name or body.name
    if not body.server_api_key:
        data.pop("server_api_key", None)
    return Status(201, deployment_out(actions.create_deployment(actor_of(request), cast(DeploymentData, data))))


@router.get("/{name}", response=DeploymentOut, auth=VIEWER)
def get_deployment(request: HttpRequest, name: str) -> DeploymentOut:
    return deployment_out(find.deployment(name))


@router.patch("/{name}", response=DeploymentOut, auth=OPERATOR)
@change()
def update_deployment(request: HttpRequest, name: str, body: DeploymentChanges) -> DeploymentOut:
    """Changes only the fields that are sent. Routers follow at once, servers at their next start."""
    deployment = find.deployment(name)
    data = body.dict(exclude_unset=True, exclude=NOT_FIELDS)
    if "engine_env" in data:
        data["engine_env"] = _unmasked(data["engine_env"], deployment.engine_env)
    changed = actions.update_deployment(deployment.pk, actor_of(request), cast(DeploymentData, data), body.reason)
    return deployment_out(changed)


@router.delete("/{name}", response=Deleted, auth=ADMIN)
@change()
def delete_deployment(request: HttpRequest, name: str) -> Deleted:
    """With its servers, which must be at rest."""
    actions.delete_deployment(find.deployment(name).pk, actor_of(request))
    return Deleted(deleted=f"deployment {name}")


@router.get("/{name}/revisions", response=Page[RevisionOut], auth=VIEWER)
def list_revisions(request: HttpRequest, name: str, paging: Query[Paging]) -> dict[str, Any]:
    """What servers were started with from one change to the next, newest first."""
    return page(find.deployment(name).revisions.all(), paging, revision_out)


@router.post("/{name}/roll-back", response=DeploymentOut, auth=OPERATOR)
@change()
def roll_back(request: HttpRequest, name: str, body: RollBackIn) -> DeploymentOut:
    """Servers start with an earlier revision's settings from their next start on; that is a new revision."""
    changed = actions.roll_back(find.deployment(name).pk, body.revision, actor_of(request), body.reason)
    return deployment_out(changed)


@router.post("/{name}/clone", response={201: DeploymentOut}, auth=OPERATOR)
@change()
def clone_deployment(request: HttpRequest, name: str, body: CloneIn) -> Status[DeploymentOut]:
    """A new deployment without servers and with a key of its own, in all else like this one."""
    served = body.served_model_name or body.name
    made = actions.clone_deployment(find.deployment(name).pk, actor_of(request), body.name, served)
    return Status(201, deployment_out(made))


def revision_out(revision: Revision) -> RevisionOut:
    settings = {**revision.settings, "engine_env": _masked(revision.settings.get("engine_env", {}))}
    return RevisionOut(
        number=revision.number,
        made_at=revision.made_at,
        made_by=revision.made_by,
        reason=revision.reason,
        settings=settings,
    )


def deployment_out(deployment: Deployment) -> DeploymentOut:
    return DeploymentOut.model_validate(
        {
            **{field: getattr(deployment, field) for field in DeploymentOut.model_fields if field != "servers"},
            "engine_env": _masked(deployment.engine_env),
            "servers": server_refs(deployment.servers.all()),
        }
    )


def _masked(environment: dict[str, str]) -> dict[str, str]:
    return {name: MASK if is_secret(name) else value for name, value in environment.items()}


def _unmasked(sent: dict[str, str], known: dict[str, str]) -> dict[str, str]:
    """Who reads, changes one value and sends all back, keeps the secrets they were not shown."""
    return {name: known.get(name, value) if value == MASK else value for name, value in sent.items()}
