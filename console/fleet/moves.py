"""Taking a server from one role to another: preview, drain, stop, start, verify.

A request only takes the server out of traffic. From there `advance` carries the move on, a step at a time, whenever a
report or the tick says that its server has come further; each step is one transaction with a conditional update, so a
worker that dies anywhere leaves a move that the next one continues.
"""

from typing import Any, Literal

from django.db import IntegrityError, transaction
from django.utils import timezone

from console.accounts.audit import SYSTEM, Actor, record
from console.accounts.models import Role
from console.fleet import guards, starting
from console.fleet.draining import begin_drain, end, take_back
from console.fleet.errors import Conflict, FleetError, Invalid
from console.fleet.models import Move, Server
from console.fleet.move_preview import MovePreview, preview_of
from console.fleet.move_steps import Step, next_step
from console.fleet.signals import move_changed
from console.fleet.states import MOVE_OPEN, MoveStatus, ServerRole, ServerState

WayOut = Literal["retry", "back", "plain"]


def preview(server_id: int, role: str) -> MovePreview:
    """What moving it to `role` would mean now. Raises NotFound, Invalid for a word that is no role."""
    return preview_of(guards.server(server_id), _role(role))


def request(server_id: int, role: str, actor: Actor, reason: str = "", confirmed: bool = False) -> Move:
    """Takes the server out of traffic and begins the move.

    Raises Conflict when the preview refuses, or when it names a consequence that was not confirmed.
    """
    guards.need(actor, Role.OPERATOR, "move a server")
    target = _role(role)
    with transaction.atomic():
        guards.lock_host_of(server_id)
        server = guards.server(server_id)
        seen = preview_of(server, target)
        if server.role == target:
            raise Invalid(seen["refused"][0], "role")
        if seen["refused"]:
            raise Conflict(" ".join(seen["refused"]))
        if seen["needs_confirmation"] and not confirmed:
            raise Conflict(" ".join([*seen["consequences"], "Confirm it to go ahead."]), "confirmed")
        move = _create(server, server.role, target, actor, reason, status=MoveStatus.DRAINING)
        if not begin_drain(server, f"moved to {target} by {actor.name}"):
            raise Conflict(f"Somebody else acted on {server.name} just now. Look again, then decide.")
    return move


def cancel(move_id: int, actor: Actor) -> Move:
    """The server goes back into traffic at once. Raises Conflict when it is past draining."""
    guards.need(actor, Role.OPERATOR, "cancel a move")
    with transaction.atomic():
        move = guards.move(move_id)
        if move.status != MoveStatus.DRAINING or not take_back_if_draining(move.server):
            raise Conflict(
                f"This move is {move.status}, and only a draining server can be taken back. "
                "Wait for it to end, then move the server back."
            )
        _finish(move, MoveStatus.CANCELLED)
        record(actor, "server.move_cancel", f"server {move.server.name}", {"to": move.to_role})
    return move


def force(move_id: int, actor: Actor, reason: str = "") -> Move:
    """Does not wait for running requests any longer: they are cut off. Raises Conflict when it is past draining."""
    guards.need(actor, Role.OPERATOR, "force a move")
    with transaction.atomic():
        move = guards.move(move_id)
        if move.server.state != ServerState.DRAINING or not end(move.server, f"forced by {actor.name}", drain_s=0.0):
            raise Conflict(f"This move is {move.status}: there is nothing to cut short.")
        record(actor, "server.move_force", f"server {move.server.name}", {"to": move.to_role}, reason=reason)
        advance(move)
    return move


def ways_out(move: Move) -> list[WayOut]:
    """What a failed move offers. Empty when it did not fail, or something newer happened to its server."""
    if move.status != MoveStatus.FAILED or not move.server.is_at_rest:
        return []
    newest = Move.objects.filter(server=move.server).order_by("-id").first()
    if newest is None or newest.pk != move.pk:
        return []
    plain_is_new = ServerRole.PLAIN not in (move.from_role, move.to_role)
    return ["retry", "back", "plain"] if plain_is_new else ["retry", "back"]


def retry(move_id: int, actor: Actor) -> Move:
    """Starts the server of a failed move once more in the role it was to have."""
    move = guards.move(move_id)
    return _start_anew(move, actor, move.to_role, "retry")


def way_back(move_id: int, actor: Actor) -> Move:
    """Starts the server of a failed move in the role it came from."""
    move = guards.move(move_id)
    return _start_anew(move, actor, move.from_role, "back")


def to_plain(move_id: int, actor: Actor) -> Move:
    """Starts the server of a failed move as a plain server, which needs no KV connector."""
    return _start_anew(guards.move(move_id), actor, ServerRole.PLAIN, "plain")


def advance(move: Move) -> bool:
    """Takes the move as far as its server has come. True when something changed. May be called at any time, twice."""
    step = next_step(MoveStatus(move.status), ServerState(move.server.state))
    if step is None:
        return False
    with transaction.atomic():
        guards.lock_host_of(move.server_id)
        move.refresh_from_db()
        move.server.refresh_from_db()
        # Somebody may have been faster between the look above and the lock.
        step = next_step(MoveStatus(move.status), ServerState(move.server.state))
        return step is not None and _take(move, step)


def advance_all(deployment_id: int | None = None) -> None:
    """Every open move, or that of one deployment."""
    rows = Move.objects.filter(status__in=MOVE_OPEN)
    if deployment_id is not None:
        rows = rows.filter(deployment_id=deployment_id)
    for move in rows.select_related("server", "server__host", "server__deployment"):
        while advance(move):
            pass


def take_back_if_draining(server: Server) -> bool:
    return server.state == ServerState.DRAINING and take_back(server)


def _take(move: Move, step: Step) -> bool:
    now = timezone.now()
    if step == "cancelled":
        return _finish(move, MoveStatus.CANCELLED)
    if step == "stopping":
        return _update(move, status=MoveStatus.STOPPING, drained_at=now)
    if step == "start":
        return _start(move)
    if step == "verifying":
        return _update(move, status=MoveStatus.VERIFYING, verifying_at=now)
    if step == "done":
        return _finish(move, MoveStatus.DONE)
    return _fail(move, _what_went_wrong(move))


def _start(move: Move) -> bool:
    """The server is stopped: the same transaction gives it the new role and its next generation."""
    now = timezone.now()
    try:
        with transaction.atomic():
            if not starting.begin(move.server, move.to_role):
                return False
    except FleetError as error:
        return _fail(move, error.message, stopped_at=now)
    move.drained_at = move.drained_at or now
    return _update(move, status=MoveStatus.STARTING, drained_at=move.drained_at, stopped_at=now, started_at=now)


def _start_anew(failed: Move, actor: Actor, role: str, way: WayOut) -> Move:
    guards.need(actor, Role.OPERATOR, "move a server")
    with transaction.atomic():
        guards.lock_host_of(failed.server_id)
        failed = guards.move(failed.pk)
        if way not in ways_out(failed):
            raise Conflict("This move offers that no longer. Look at the server as it is now.")
        server = failed.server
        old_role = failed.from_role if server.role == role else server.role
        move = _create(server, old_role, role, actor, f"{way} after move {failed.pk} failed", MoveStatus.STARTING)
        if not starting.begin(server, role):
            raise Conflict(f"Somebody else acted on {server.name} just now. Look again, then decide.")
        _update(move, out_of_traffic_at=failed.out_of_traffic_at, started_at=timezone.now())
    return move


def _create(server: Server, old: str, new: str, actor: Actor, reason: str, status: MoveStatus) -> Move:
    now = timezone.now()
    move = Move(
        server=server,
        deployment=server.deployment,
        from_role=old,
        to_role=new,
        status=status,
        requested_by=actor.name,
        reason=reason[:400],
        requested_at=now,
        out_of_traffic_at=now,
    )
    try:
        with transaction.atomic():
            move.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(
            f"Another move of {server.deployment.name} is open. One at a time: wait for it to end."
        ) from error
    record(actor, "server.move", f"server {server.name}", {"role": old}, {"role": new}, reason)
    move_changed.send(sender=Move, move=move)
    return move


def _update(move: Move, **fields: Any) -> bool:
    """Only if the row still has the status this object was read with."""
    if not Move.objects.filter(pk=move.pk, status=move.status).update(**fields):
        return False
    for name, value in fields.items():
        setattr(move, name, value)
    move_changed.send(sender=Move, move=move)
    return True


def _finish(move: Move, status: MoveStatus) -> bool:
    return _update(move, status=status, finished_at=timezone.now())


def _fail(move: Move, error: str, **fields: Any) -> bool:
    won = _update(move, status=MoveStatus.FAILED, error=error[:400], finished_at=timezone.now(), **fields)
    if won:
        after = {"to": move.to_role, "error": error[:400]}
        record(SYSTEM, "server.move_failed", f"server {move.server.name}", {"from": move.from_role}, after)
    return won


def _what_went_wrong(move: Move) -> str:
    """What stands now, and why."""
    server = move.server
    if server.state == ServerState.FAILED:
        why = server.failure.get("message", "it ended by itself")
        return f"{server.name} stands failed as {server.role}: {why} The other servers go on serving."
    why = server.stop_reason or "stopped"
    return f"{server.name} was stopped on the way ({why}). It is {server.state} as {server.role}."


def _role(word: str) -> ServerRole:
    if word not in ServerRole.values:
        raise Invalid(f"{word!r} is not a role. Choose plain, prefill or decode.", "role")
    return ServerRole(word)
