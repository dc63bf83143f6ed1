"""Servers: what they are, and starting, stopping and moving them."""

from datetime import datetime
from typing import Any, NamedTuple

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.responses import Status
from pydantic import Field

from console.api import choices, find
from console.api.changes import change, prepared
from console.api.identity import OPERATOR, VIEWER, actor_of
from console.api.moves import MoveOut, move_out
from console.api.shapes import NO_REASON, NOTHING, ChangeIn, Count, Deleted, Page, Paging, ReasonIn, Text, page
from console.fleet import actions, adoption, guards, moves, starting
from console.fleet.cards import server_card
from console.fleet.models import Move, Server
from console.fleet.move_preview import losing
from console.fleet.states import MOVE_OPEN, ServerRole, ServerState
from console.gateway import loads
from console.gateway.loads import RouterLoad
from console.launch import command

router = Router(tags=["servers"])


class DegradationOut(Schema):
    code: str
    text: str


class FailureOut(Schema):
    code: str = ""
    message: str = ""
    instruction: str = ""
    line: str = Field("", description="The log line it was read from.")


class ServerOut(Schema):
    id: int
    name: str
    host: str = Field(description="Empty for an adopted server.")
    adopted: bool = Field(description="Someone else started it: routed and watched, never started, stopped or moved.")
    deployment: str
    role: ServerRole
    state: ServerState
    state_text: str = Field(description="The state in words, with what it waits for.")
    state_since: datetime
    url: str = Field(description="Empty while it has no port.")
    generation: int = Field(description="Counts its starts.")
    gpu_indexes: list[int]
    phase: str = Field(description="How far its start has come; empty at rest.")
    inflight: int = Field(description="Requests of all routers on it now.")
    handoffs: int
    running: int | None
    waiting: int | None
    kv_usage: float | None = Field(description="0 to 1; null when not known.")
    tokens_per_s: float | None
    degradations: list[DegradationOut] = Field(description="Shown beside its state, never instead of it.")
    failure: FailureOut | None
    can_move_to: list[ServerRole]
    may_start: bool
    may_stop: bool
    move: int | None = Field(description="Id of its open move.")
    stop_reason: str
    started_at: datetime | None
    ready_at: datetime | None
    notes: list[str] = Field(
        description="What keeps it from being started now, though it is at rest; in the answer to a stop, what traffic "
        "will see of it."
    )
    command: str = Field(description="Environment and command of its newest start, secrets masked; empty before it.")


class ServerFilters(Paging):
    deployment: str | None = None
    host: str | None = None
    role: ServerRole | None = None
    state: ServerState | None = None


class ServerIn(ChangeIn):
    deployment: Text
    host: Text
    role: choices.ServerRole
    gpu_indexes: list[Count] = Field([], max_length=64, description="Empty only on a host without GPUs.")
    name: Text = Field("", max_length=63, description="The deployment's and a number when empty.")
    start: bool = Field(False, description="Start it at once.")


class AdoptIn(ChangeIn):
    deployment: Text
    url: Text = Field(max_length=300, description="Where it answers: http://10.0.0.5:8000.")
    role: choices.ServerRole | None = Field(
        None, description="Needed when it has a KV connector and does not tell its role."
    )
    name: Text = Field("", max_length=63, description="The deployment's and a number when empty.")
    api_key: Text = Field("", max_length=200, description="What it asks for. Kept, and never shown again.")


class LetGoIn(ReasonIn):
    force: bool = Field(default=False, description="Do not wait for its running requests.")


class LetGoOut(Schema):
    server: str
    draining: bool = Field(description="It is removed when its last request has ended; else it is gone already.")


class StopIn(ReasonIn):
    force: bool = Field(default=False, description="Cut running requests off instead of waiting for them.")


STOP, LET_GO = StopIn(), LetGoIn()


class MoveIn(ReasonIn):
    role: choices.ServerRole
    confirmed: bool = Field(False, description="Go ahead with the consequences that the preview names.")


class CapacityOut(Schema):
    plain: int
    prefill: int
    decode: int


class MovePreviewOut(Schema):
    server: str
    from_role: ServerRole
    to_role: ServerRole
    refused: list[str] = Field(description="Why it cannot be moved now; empty: it can.")
    consequences: list[str] = Field(description="What traffic will see meanwhile or afterwards.")
    needs_confirmation: bool
    before: CapacityOut
    during: CapacityOut
    after: CapacityOut
    pairs_after: list[str]
    inflight: int
    handoffs: int
    expected_s: float | None = Field(description="Median time out of service so far; null when nothing is known.")


class PreviewQuery(Schema):
    role: ServerRole


class Surroundings(NamedTuple):
    """What showing a server takes besides its row, read once for a whole list."""

    loads: dict[int, RouterLoad]
    open_moves: dict[int, int]
    """Server id to move id."""
    on_host: dict[int, list[Server]]
    """The servers of each host, by its id."""


@router.get("", response=Page[ServerOut], auth=VIEWER)
def list_servers(request: HttpRequest, filters: Query[ServerFilters]) -> dict[str, Any]:
    rows = Server.objects.with_names()
    if filters.deployment is not None:
        rows = rows.filter(deployment=find.given_deployment(filters.deployment))
    if filters.host is not None:
        rows = rows.filter(host=find.given_host(filters.host))
    if filters.role is not None:
        rows = rows.filter(role=filters.role)
    if filters.state is not None:
        rows = rows.filter(state=filters.state)
    around = _surroundings()
    return page(rows, filters, lambda server: server_out(server, around))


@router.post("", response={201: ServerOut}, auth=OPERATOR)
@change()
def add_server(request: HttpRequest, body: ServerIn) -> Status[ServerOut]:
    """A stopped server, or with `start` one on its way up."""
    actor = actor_of(request)
    server = actions.add_server(
        actor,
        deployment_id=find.given_deployment(body.deployment).pk,
        host_id=find.given_host(body.host).pk,
        role=body.role,
        gpu_indexes=body.gpu_indexes,
        name=body.name,
    )
    if body.start:
        server = actions.start(server.pk, actor)
    return Status(201, server_out(server))


def _ask_candidate(request: HttpRequest) -> adoption.Candidate | None:
    """No transaction waits for a server that takes its time to answer."""
    actor = OPERATOR(request).actor
    try:
        body = AdoptIn.model_validate_json(request.body)
    except ValueError:
        return None
    deployment = find.given_deployment(body.deployment)
    return adoption.ask(actor, deployment.pk, body.url, body.role, body.name, body.api_key)


@router.post("/adopt", response={201: ServerOut}, auth=OPERATOR)
@change(first=_ask_candidate)
def adopt_server(request: HttpRequest, body: AdoptIn) -> Status[ServerOut]:
    """Takes on a server that someone else started: it is asked what it is, then routed and watched."""
    candidate: adoption.Candidate = prepared(request)
    return Status(201, server_out(adoption.take_on(actor_of(request), candidate)))


@router.post("/{int:server_id}/drill", response={202: ServerOut}, auth=OPERATOR)
@change()
def hold_drill(request: HttpRequest, server_id: int, body: ReasonIn = NO_REASON) -> Status[ServerOut]:
    """Kills the engine of a simulated server, as a crash would; refused for any other. It then shows as failed."""
    return Status(202, server_out(actions.drill(server_id, actor_of(request), body.reason)))


@router.post("/{int:server_id}/let-go", response={202: LetGoOut}, auth=OPERATOR)
@change()
def let_go(request: HttpRequest, server_id: int, body: LetGoIn = LET_GO) -> Status[LetGoOut]:
    """Takes an adopted server out of traffic and forgets it. Its process goes on."""
    name = guards.server(server_id).name
    kept = actions.let_go(server_id, actor_of(request), body.reason, force=body.force)
    return Status(202, LetGoOut(server=name, draining=kept is not None))


@router.get("/{int:server_id}", response=ServerOut, auth=VIEWER)
def get_server(request: HttpRequest, server_id: int) -> ServerOut:
    return server_out(guards.server(server_id))


@router.delete("/{int:server_id}", response=Deleted, auth=OPERATOR)
@change()
def delete_server(request: HttpRequest, server_id: int) -> Deleted:
    """Only at rest."""
    name = guards.server(server_id).name
    actions.delete_server(server_id, actor_of(request))
    return Deleted(deleted=f"server {name}")


@router.post("/{int:server_id}/start", response={202: ServerOut}, auth=OPERATOR)
@change()
def start_server(request: HttpRequest, server_id: int, body: ReasonIn = NO_REASON) -> Status[ServerOut]:
    """Asks its host to start it. A second start is refused with 409."""
    return Status(202, server_out(actions.start(server_id, actor_of(request), body.reason)))


@router.post("/{int:server_id}/stop", response={202: ServerOut}, auth=OPERATOR)
@change()
def stop_server(request: HttpRequest, server_id: int, body: StopIn = STOP) -> Status[ServerOut]:
    """A serving server is drained first. It is not asked twice: `notes` say what traffic will see of it. With
    `dry_run` they say so before anything happens; until it has drained, `cancel-stop` takes it back."""
    noticed = losing(guards.server(server_id))
    stopped = server_out(actions.stop(server_id, actor_of(request), body.reason, force=body.force))
    return Status(202, stopped.model_copy(update={"notes": noticed}))


@router.post("/{int:server_id}/cancel-stop", response=ServerOut, auth=OPERATOR)
@change()
def cancel_stop(request: HttpRequest, server_id: int, body: ChangeIn = NOTHING) -> ServerOut:
    """Takes a draining server back into traffic."""
    return server_out(actions.cancel_stop(server_id, actor_of(request)))


@router.get("/{int:server_id}/move-preview", response=MovePreviewOut, auth=VIEWER)
def preview_move(request: HttpRequest, server_id: int, query: Query[PreviewQuery]) -> dict[str, Any]:
    """What a move would mean, before anything is touched."""
    return {**moves.preview(server_id, query.role)}


@router.post("/{int:server_id}/move", response={202: MoveOut}, auth=OPERATOR)
@change()
def move_server(request: HttpRequest, server_id: int, body: MoveIn) -> Status[MoveOut]:
    """Takes it out of traffic and begins the move to another role."""
    move = moves.request(server_id, body.role, actor_of(request), body.reason, confirmed=body.confirmed)
    return Status(202, move_out(move))


def server_out(server: Server, around: Surroundings | None = None) -> ServerOut:
    around = around or _surroundings()
    card = server_card(server, around.loads.get(server.pk))
    hindrance = starting.hindrance(server, around.on_host.get(server.host_id or 0, []))
    return ServerOut.model_validate(
        {
            **card,
            "state_since": server.state_since,
            "gpu_indexes": card["gpus"],
            "failure": card["failure"] or None,
            "may_start": card["may_start"] and not hindrance,
            "notes": [hindrance] if hindrance else [],
            "move": around.open_moves.get(server.pk),
            "stop_reason": server.stop_reason,
            "started_at": server.started_at,
            "ready_at": server.ready_at,
            "command": command.shell_text(server.launch_spec) if server.launch_spec else "",
        }
    )


def _surroundings() -> Surroundings:
    opened = Move.objects.filter(status__in=MOVE_OPEN).values_list("server_id", "pk")
    on_host: dict[int, list[Server]] = {}
    for server in Server.objects.exclude(host=None):
        on_host.setdefault(server.host_id or 0, []).append(server)
    return Surroundings(loads.read(), dict(opened), on_host)
