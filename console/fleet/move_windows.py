"""The traffic before and after a move: what the move did to the first token and to the stream."""

from datetime import datetime, timedelta
from typing import Literal

from django.utils import timezone

from console.fleet.models import Move
from console.fleet.signals import move_changed
from console.fleet.states import MoveStatus
from console.traffic.percentiles import window

MEASURED_FOR = timedelta(seconds=60)
SETTLE = timedelta(seconds=10)
"""Requests are recorded when they end; those under way at the edge of a window get this long."""
GIVE_UP_AFTER = timedelta(minutes=30)
"""A worker that was away for longer does not look back."""


def fill_windows() -> None:
    """Writes what is missing and whose time has come. May run twice."""
    now = timezone.now()
    begun = Move.objects.filter(before={}, requested_at__gt=now - GIVE_UP_AFTER, requested_at__lte=now - SETTLE)
    for move in begun:
        _fill(move, "before", move.requested_at - MEASURED_FOR)
    latest = now - MEASURED_FOR - SETTLE
    done = Move.objects.filter(status=MoveStatus.DONE, after={}, finished_at__gt=now - GIVE_UP_AFTER)
    for move in done.filter(finished_at__lte=latest):
        if move.finished_at is not None:
            _fill(move, "after", move.finished_at)


def _fill(move: Move, field: Literal["before", "after"], start: datetime) -> None:
    seen = dict(window(move.deployment_id, start, start + MEASURED_FOR))
    if Move.objects.filter(pk=move.pk, **{field: {}}).update(**{field: seen}):
        setattr(move, field, seen)
        move_changed.send(sender=Move, move=move)
