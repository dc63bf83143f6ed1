"""What the page of one move tells: its steps with their seconds, and the traffic before and after."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from console.fleet.models import Move
from console.fleet.states import MoveStatus


@dataclass(frozen=True)
class StepRow:
    words: str
    at: datetime | None
    took_s: float | None
    """None: not reached, or still going on."""


AFTER_LIMIT = timedelta(minutes=3)
"""By then the traffic after a move is measured, or will not be."""


def is_settled(move: Move) -> bool:
    """Nothing on its page will change by itself any more."""
    if move.is_open or move.finished_at is None:
        return False
    return move.status != MoveStatus.DONE or bool(move.after) or timezone.now() - move.finished_at > AFTER_LIMIT


def details(move: Move) -> dict[str, Any]:
    return {
        "steps": steps(move),
        "is_settled": is_settled(move),
        "so_far_s": (timezone.now() - move.requested_at).total_seconds(),
    }


def steps(move: Move) -> list[StepRow]:
    last = "Done" if move.status == MoveStatus.DONE else move.get_status_display() if move.finished_at else "Done"
    marks = [
        ("Asked for", move.requested_at),
        ("Out of traffic", move.out_of_traffic_at),
        ("Drained", move.drained_at),
        ("Stopped", move.stopped_at),
        ("Started in the new role", move.started_at),
        ("Being verified", move.verifying_at),
        (last, move.finished_at),
    ]
    rows, before = [], None
    for words, at in marks:
        rows.append(StepRow(words, at, (at - before).total_seconds() if at and before else None))
        before = at or before
    return rows
