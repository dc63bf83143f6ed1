"""The figures of several workers as those of one router."""

import asyncio
import contextlib
import socket

import pytest

from routing import colleagues
from routing import kept as kept_reports
from routing.colleagues import Colleagues, make_inboxes
from routing.kept import Kept
from routing.metrics import RouterMetrics
from routing.record import Record
from routing.summed import counts_of, is_highest, pack, render
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
    found = lines(render(of(finished(), finished(ttft_ms=700)), [(of(finished()), b"")]))
    bucket = 'switchyard_router_time_to_first_token_seconds_bucket{deployment="m",le="%s",route="plain"} %s'
    assert {bucket % ("0.01", "2.0"), bucket % ("0.5", "2.0"), bucket % ("+Inf", "3.0")} <= found
    assert 'switchyard_router_time_to_first_token_seconds_count{deployment="m",route="plain"} 3.0' in found
    assert 'switchyard_router_requests_total{deployment="m",outcome="ok",route="plain"} 3.0' in found


def test_what_only_one_has_seen_is_there() -> None:
    found = lines(render(of(finished("plain")), [(of(finished("split")), b"")]))
    for route in ("plain", "split"):
        assert f'switchyard_router_requests_total{{deployment="m",outcome="ok",route="{route}"}} 1.0' in found


def test_the_sum_of_one_is_what_it_says_itself() -> None:
    metrics = RouterMetrics()
    metrics.finished(finished())
    assert lines(metrics.render()) < lines(render(pack(metrics), []))


def test_circuits_and_limits_do_not_add_up() -> None:
    assert is_highest("switchyard_router_circuit_open", {"server": "a"})
    assert is_highest("switchyard_router_server_silent", {"server": "a"})
    assert is_highest("switchyard_router_connections", {"server": "a", "kind": "limit"})
    assert not is_highest("switchyard_router_connections", {"server": "a", "kind": "idle"})


def test_what_came_cut_short_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    found = lines(render(of(finished()), [(of(finished())[:40], b"")]))
    assert {"switchyard_router_workers 2.0", "switchyard_router_workers_answered 1.0"} <= found
    assert "1 of 2 workers gave no figures in time" in caplog.text


def test_of_a_worker_that_does_not_answer_is_shown_what_it_had_counted() -> None:
    kept = counts_of(of(finished(), finished()))
    found = lines(render(of(finished()), [(b"", kept)]))
    assert {"switchyard_router_workers 2.0", "switchyard_router_workers_answered 1.0"} <= found
    assert 'switchyard_router_requests_total{deployment="m",outcome="ok",route="plain"} 3.0' in found


def test_a_worker_goes_on_from_what_those_before_it_had_counted() -> None:
    metrics = RouterMetrics()
    metrics.finished(finished("split"))
    before = counts_of(of(finished(), finished()))
    told = pack(metrics, before)
    again = lines(render(pack(metrics, counts_of(told)), []))
    assert 'switchyard_router_requests_total{deployment="m",outcome="ok",route="plain"} 2.0' in lines(render(told, []))
    assert 'switchyard_router_requests_total{deployment="m",outcome="ok",route="split"} 2.0' in again


def test_what_is_kept_is_the_last_that_was_written() -> None:
    kept = Kept(2)
    assert kept.read(1) == b""
    for report in (b"one", b"a longer one", b"two"):
        kept.write(1, report)
        assert (kept.read(0), kept.read(1)) == (b"", report)


def test_figures_that_are_too_long_leave_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_reports, "REPORT_BYTES", 8)
    kept = Kept(1)
    kept.write(0, b"short")
    kept.write(0, b"far too long")
    assert kept.read(0) == b"short"
    assert "too long to be kept" in caplog.text


async def test_an_answer_may_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colleagues, "ANSWER_WITHIN_S", LIMIT_S)
    inboxes = make_inboxes(2)
    asks, answers = Colleagues(0, inboxes, lambda: b""), Colleagues(1, inboxes, lambda: b"x" * 5_000_000)
    answers.listen()
    assert {number: len(answer) for number, answer in (await asks.ask()).items()} == {1: 5_000_000}
    answers.close()
    close(inboxes)


async def test_a_worker_whose_inbox_is_full_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colleagues, "ANSWER_WITHIN_S", 3600)
    inboxes = make_inboxes(2)
    with contextlib.suppress(BlockingIOError):
        while True:
            inboxes[1][1].send(b"?")
    async with asyncio.timeout(LIMIT_S):
        assert await Colleagues(0, inboxes, lambda: b"").ask() == {1: b""}
    close(inboxes)


def close(inboxes: list[tuple[socket.socket, socket.socket]]) -> None:
    for inbox in inboxes:
        for end in inbox:
            end.close()
