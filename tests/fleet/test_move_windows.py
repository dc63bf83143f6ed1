"""The traffic before and after a move, written once the requests of the window have ended."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from console.fleet.models import Move, Server
from console.fleet.move_windows import fill_windows
from console.fleet.states import MoveStatus, ServerRole, ServerState
from console.traffic.models import RequestRecord
from tests.factories import make_server

pytestmark = pytest.mark.django_db


def ago(seconds: float) -> datetime:
    return timezone.now() - timedelta(seconds=seconds)


def make_move(requested_at: datetime, finished_at: datetime | None = None) -> Move:
    server = make_server(state=ServerState.READY)
    return Move.objects.create(
        server=server,
        deployment=server.deployment,
        from_role=ServerRole.PREFILL,
        to_role=ServerRole.DECODE,
        status=MoveStatus.DONE if finished_at else MoveStatus.DRAINING,
        requested_by="olga",
        requested_at=requested_at,
        finished_at=finished_at,
    )


def answer(server: Server, at: datetime, ttft_ms: float) -> None:
    RequestRecord.objects.create(
        request_id=f"r{RequestRecord.objects.count()}",
        deployment=server.deployment,
        path="/v1/completions",
        streamed=True,
        received_at=at,
        first_token_ms=ttft_ms,
        status=200,
        outcome="ok",
    )


def test_the_minute_before_the_request_and_the_minute_after_the_end() -> None:
    move = make_move(requested_at=ago(120), finished_at=ago(90))
    for seconds, ttft_ms in [(200, 1.0), (150, 50.0), (100, 2.0), (60, 30.0), (10, 3.0)]:
        answer(move.server, ago(seconds), ttft_ms)
    fill_windows()
    move.refresh_from_db()
    assert (move.before["requests"], move.before["ttft_p50_ms"]) == (1, pytest.approx(50.0, rel=0.01))
    assert (move.after["requests"], move.after["ttft_p50_ms"]) == (1, pytest.approx(30.0, rel=0.01))


def test_a_window_that_is_not_over_is_waited_for() -> None:
    move = make_move(requested_at=ago(40), finished_at=ago(30))
    fill_windows()
    move.refresh_from_db()
    assert move.before
    assert move.after == {}


def test_what_was_written_stays() -> None:
    move = make_move(requested_at=ago(120), finished_at=ago(90))
    fill_windows()
    answer(move.server, ago(60), 30.0)
    fill_windows()
    move.refresh_from_db()
    assert move.after["requests"] == 0
