"""Moves: taking a server from one role to another."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.responses import Status
from pydantic import Field, JsonValue

from console.api import find
from console.api.changes import change
from console.api.identity import OPERATOR, VIEWER, actor_of
from console.api.shapes import NO_REASON, NOTHING, ChangeIn, Page, Paging, ReasonIn, page
from console.fleet import guards, moves
from console.fleet.models import Move
from console.fleet.states import MOVE_OPEN, MoveStatus, ServerRole

router = Router(tags=["moves"])


class MoveOut(Schema):
    id: int
    server: int
    server_name: str
    deployment: str
    from_role: ServerRole
    to_role: ServerRole
    status: MoveStatus
    requested_by: str
    reason: str
    requested_at: datetime
    out_of_traffic_at: datetime | None
    drained_at: datetime | None
    stopped_at: datetime | None
    started_at: datetime | None
    verifying_at: datetime | None
    finished_at: datetime | None
    out_of_service_s: float | None = Field(description="From leaving traffic to taking it again; null until then.")
    error: str
    before: dict[str, JsonValue] = Field(description="TTFT, gaps and outcomes of the deployment before the move.")
    after: dict[str, JsonValue] = Field(description="The same after it; empty until enough time has passed.")
    ways_out: list[Literal["retry", "back", "plain"]] = Field(description="What a failed move offers now.")


class MoveFilters(Paging):
    deployment: str | None = None
    server: int | None = Field(None, description="Id of a server.", ge=1, le=2**63 - 1)
    status: MoveStatus | None = None
    open: bool | None = Field(None, description="Still on its way, or not.")


class WayBackIn(ChangeIn):
    role: Literal["plain", "before"] = Field(default="before", description="The role it came from, or plain.")


WAY_BACK = WayBackIn()


@router.get("", response=Page[MoveOut], auth=VIEWER)
def list_moves(request: HttpRequest, filters: Query[MoveFilters]) -> dict[str, Any]:
    """Newest first."""
    rows = Move.objects.select_related("server", "deployment")
    if filters.deployment is not None:
        rows = rows.filter(deployment=find.given_deployment(filters.deployment))
    if filters.server is not None:
        rows = rows.filter(server_id=filters.server)
    if filters.status is not None:
        rows = rows.filter(status=filters.status)
    if filters.open is not None:
        rows = rows.filter(status__in=MOVE_OPEN) if filters.open else rows.exclude(status__in=MOVE_OPEN)
    return page(rows, filters, move_out)


@router.get("/{int:move_id}", response=MoveOut, auth=VIEWER)
def get_move(request: HttpRequest, move_id: int) -> MoveOut:
    return move_out(guards.move(move_id))


@router.post("/{int:move_id}/cancel", response=MoveOut, auth=OPERATOR)
@change()
def cancel_move(request: HttpRequest, move_id: int, body: ChangeIn = NOTHING) -> MoveOut:
    """While it drains: the server goes back into traffic at once."""
    return move_out(moves.cancel(move_id, actor_of(request)))


@router.post("/{int:move_id}/force", response={202: MoveOut}, auth=OPERATOR)
@change()
def force_move(request: HttpRequest, move_id: int, body: ReasonIn = NO_REASON) -> Status[MoveOut]:
    """Waits for running requests no longer: they are cut off."""
    return Status(202, move_out(moves.force(move_id, actor_of(request), body.reason)))


@router.post("/{int:move_id}/retry", response={202: MoveOut}, auth=OPERATOR)
@change()
def retry_move(request: HttpRequest, move_id: int, body: ChangeIn = NOTHING) -> Status[MoveOut]:
    """After a failed move: starts its server once more in the role it was to have. Answers the new move."""
    return Status(202, move_out(moves.retry(move_id, actor_of(request))))


@router.post("/{int:move_id}/way-back", response={202: MoveOut}, auth=OPERATOR)
@change()
def move_back(request: HttpRequest, move_id: int, body: WayBackIn = WAY_BACK) -> Status[MoveOut]:
    """After a failed move: starts its server in the role it came from, or as plain. Answers the new move."""
    way = moves.to_plain if body.role == "plain" else moves.way_back
    return Status(202, move_out(way(move_id, actor_of(request))))


def move_out(move: Move) -> MoveOut:
    outage = move.out_of_service
    return MoveOut(
        id=move.pk,
        server=move.server_id,
        server_name=move.server.name,
        deployment=move.deployment.name,
        from_role=ServerRole(move.from_role),
        to_role=ServerRole(move.to_role),
        status=MoveStatus(move.status),
        requested_by=move.requested_by,
        reason=move.reason,
        requested_at=move.requested_at,
        out_of_traffic_at=move.out_of_traffic_at,
        drained_at=move.drained_at,
        stopped_at=move.stopped_at,
        started_at=move.started_at,
        verifying_at=move.verifying_at,
        finished_at=move.finished_at,
        out_of_service_s=outage.total_seconds() if outage is not None else None,
        error=move.error,
        before=move.before,
        after=move.after,
        ways_out=moves.ways_out(move),
    )
