"""The figures of several workers as those of one router."""

import asyncio
import contextlib
import socket

import pytest

from routing import colleagues
from routing.colleagues import Colleagues, make_inboxes
from routing.metrics import RouterMetrics
from routing.record import Record
from routing.summed import is_highest, pack, render
from tests.waiting import LIMIT_S


def finished(route: str = "plain", ttft_ms: float = 7.0) -> Record:
    record = Record("r", "m", "/v1/completions", True, 0.0)
    record.route, record.outcome = route, "ok"  # type: ignore[assignment]
    record.first_token_ms = record.finished_ms = ttft_ms
    return record


def of(*records: Record) -> bytes:
    metrics = RouterMetrics()
    for record in records:
        metrics.finished(record)
    return pack(metrics)


def lines(text: bytes) -> set[str]:
    return set(text.decode().splitlines())


def test_counts_and_buckets_add_up() -> None:
    found = lines(render(of(finished(), finished(ttft_ms=700)), [of(finished())], 2))
    bucket = 'switchyard_router_time_to_first_token_seconds_bucket{deployment="m",le="%s",route="plain"} %s'
    assert {bucket % ("0.01", "2.0"), bucket % ("0.5", "2.0"), bucket % ("+Inf", "3.0")} <= found
    assert 'switchyard_router_time_to_first_token_seconds_count{deployment="m",route="plain"} 3.0' in found
    assert 'switchyard_router_requests_total{deployment="m",outcome="ok",route="plain"} 3.0' in found


def test_what_only_one_has_seen_is_there() -> None:
    found = lines(render(of(finished("plain")), [of(finished("split"))], 2))
    for route in ("plain", "split"):
        assert f'switchyard_router_requests_total{{deployment="m",outcome="ok",route="{route}"}} 1.0' in found


def test_the_sum_of_one_is_what_it_says_itself() -> None:
    metrics = RouterMetrics()
    metrics.finished(finished())
    assert lines(metrics.render()) < lines(render(pack(metrics), [], 1))


def test_circuits_and_limits_do_not_add_up() -> None:
    assert is_highest("switchyard_router_circuit_open", {"server": "a"})
    assert is_highest("switchyard_router_server_silent", {"server": "a"})
    assert is_highest("switchyard_router_connections", {"server": "a", "kind": "limit"})
    assert not is_highest("switchyard_router_connections", {"server": "a", "kind": "idle"})


def test_what_came_cut_short_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    found = lines(render(of(finished()), [of(finished())[:40]], 2))
    assert {"switchyard_router_workers 2.0", "switchyard_router_workers_answered 1.0"} <= found
    assert "1 of 2 workers gave no figures in time" in caplog.text


async def test_an_answer_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colleagues, "ANSWER_WITHIN_S", LIMIT_S)
    inboxes = make_inboxes(2)
    asks, answers = Colleagues(0, inboxes, lambda: b""), Colleagues(1, inboxes, lambda: b"x" * 5_000_000)
    answers.listen()
    assert list(map(len, await asks.ask())) == [5_000_000]
    answers.close()
    close(inboxes)


async def test_a_worker_whose_inbox_is_full_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colleagues, "ANSWER_WITHIN_S", 3600)
    inboxes = make_inboxes(2)
    with contextlib.suppress(BlockingIOError):
        while True:
            inboxes[1][1].send(b"?")
    async with asyncio.timeout(LIMIT_S):
        assert await Colleagues(0, inboxes, lambda: b"").ask() == []
    close(inboxes)


def close(inboxes: list[tuple[socket.socket, socket.socket]]) -> None:
    for inbox in inboxes:
        for end in inbox:
            end.close()
