"""What the router saw reaches the live stream and the record stream, and survives an absent Valkey up to a bound."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from pytest_django import Settings

from console import valkey as connections
from console.embedded import EmbeddedValkey
from console.gateway import reports as module
from console.gateway.reports import Reports
from console.live import bus
from console.traffic import wire
from tests.gateway.records import NAMES, make_record
from tests.gateway.standin import StandInRouter
from tests.own import free_port


@pytest.fixture
def reports() -> Reports:
    return Reports("router-a", lambda: NAMES)


@pytest.fixture
def own_valkey(tmp_path: Path, settings: Settings) -> Iterator[EmbeddedValkey]:
    """One that the test may stop and start again."""
    server = EmbeddedValkey(tmp_path, free_port())
    server.start()
    settings.REDIS_URL = server.url
    yield server
    server.stop()


async def deliver(reports: Reports) -> None:
    async with connections.async_client() as client:
        await reports.send(client)


def live_events(client: "redis.Redis") -> list[dict[str, Any]]:
    entries: Any = client.xrange(bus.stream())
    return [event for _, fields in entries for event in orjson.loads(fields[b"e"])]


def records(client: "redis.Redis") -> list[dict[str, Any]]:
    entries: Any = client.xrange(wire.stream())
    return [orjson.loads(fields[b"r"]) for _, fields in entries]


async def test_a_first_token_becomes_a_dot(valkey: "redis.Redis", reports: Reports) -> None:
    reports.first_token(make_record())
    reports.look(StandInRouter())
    await deliver(reports)
    assert [event["type"] for event in live_events(valkey)] == ["ttft"]


async def test_gaps_of_a_running_stream_are_told_while_it_runs(valkey: "redis.Redis", reports: Reports) -> None:
    router, record = StandInRouter(), make_record([10])
    router.run(record)
    reports.look(router)
    record.gaps_ms.extend([20, 30])
    reports.look(router)
    await deliver(reports)
    gaps = live_events(valkey)
    assert [(event["server"], event["role"], event["count"]) for event in gaps] == [
        ("decode-1", "decode", 1),
        ("decode-1", "decode", 2),
    ]


async def test_gaps_of_several_streams_on_one_server_are_one_event(valkey: "redis.Redis", reports: Reports) -> None:
    router = StandInRouter()
    router.run(make_record([10]))
    router.run(make_record([30], request_id="r2"))
    reports.look(router)
    await deliver(reports)
    assert [event["count"] for event in live_events(valkey)] == [2]


async def test_the_last_gaps_of_a_finished_request_are_told_too(valkey: "redis.Redis", reports: Reports) -> None:
    router, record = StandInRouter(), make_record([10])
    router.run(record)
    reports.look(router)
    record.gaps_ms.append(20)
    record.finished_ms = 200.0
    reports.finished(record)
    reports.look(router)  # it is still listed there
    await deliver(reports)
    events = live_events(valkey)
    assert [event["count"] for event in events if event["type"] == "gaps"] == [1, 1]
    assert [event["request"]["request_id"] for event in events if event["type"] == "request"] == ["r1"]


async def test_a_request_shorter_than_a_look_is_told_whole(valkey: "redis.Redis", reports: Reports) -> None:
    reports.finished(make_record([10, 20], finished_ms=150.0, estimated_prompt_tokens=5000))
    reports.look(StandInRouter())
    await deliver(reports)
    assert {event["type"] for event in live_events(valkey)} == {"gaps", "request", "long_prompt"}


async def test_a_long_prompt_is_marked_once(valkey: "redis.Redis", reports: Reports) -> None:
    router, record = StandInRouter(), make_record(estimated_prompt_tokens=5000)
    router.run(record)
    reports.look(router)
    reports.look(router)
    record.finished_ms = 200.0
    reports.finished(record)
    reports.look(router)
    await deliver(reports)
    assert [event["type"] for event in live_events(valkey)].count("long_prompt") == 1


async def test_from_which_length_a_prompt_is_long_is_a_setting(
    valkey: "redis.Redis", reports: Reports, settings: Settings
) -> None:
    settings.LONG_PROMPT_TOKENS = 100
    reports.finished(make_record(finished_ms=150.0, estimated_prompt_tokens=100))
    reports.look(StandInRouter())
    await deliver(reports)
    assert "long_prompt" in {event["type"] for event in live_events(valkey)}


async def test_a_finished_request_is_handed_over(valkey: "redis.Redis", reports: Reports) -> None:
    reports.finished(make_record([10], finished_ms=150.0))
    await deliver(reports)
    [found] = records(valkey)
    assert (found["request_id"], found["decode_server"], found["gaps_ms"]) == ("r1", "decode-1", [10.0])


async def test_a_request_for_an_unknown_model_is_stored_but_shown_to_nobody(
    valkey: "redis.Redis", reports: Reports
) -> None:
    reports.finished(make_record(deployment="", finished_ms=1.0, outcome="refused"))
    reports.look(StandInRouter())
    await deliver(reports)
    assert live_events(valkey) == []
    assert len(records(valkey)) == 1


async def test_records_made_while_valkey_is_away_are_delivered_later(
    own_valkey: EmbeddedValkey, reports: Reports
) -> None:
    own_valkey.stop()
    reports.finished(make_record(request_id="made meanwhile", finished_ms=1.0))
    with pytest.raises(connections.Down):
        await deliver(reports)
    own_valkey.start()
    await deliver(reports)
    with redis.Redis.from_url(own_valkey.url) as client:
        assert [found["request_id"] for found in records(client)] == ["made meanwhile"]


def test_what_is_kept_without_valkey_has_a_bound_and_losses_are_counted(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports.records, "_limit_bytes", 10_000)
    for number in range(100):
        reports.finished(make_record(request_id=f"r{number}", finished_ms=1.0))
    assert 0 < len(reports.records) < 20
    assert reports.records.dropped + len(reports.records) == 100


async def test_records_wait_here_while_the_worker_is_far_behind(
    valkey: "redis.Redis", reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKLOG_LIMIT", 1)
    for number in range(3):
        reports.finished(make_record(request_id=f"r{number}", finished_ms=1.0))
        await deliver(reports)
    assert valkey.xlen(wire.stream()) == 2
    assert len(reports.records) == 1
    valkey.delete(wire.stream())
    await deliver(reports)
    await deliver(reports)
    assert len(reports.records) == 0


def test_a_request_that_ended_unseen_is_not_remembered(reports: Reports) -> None:
    router = StandInRouter()
    router.run(make_record([10]))
    reports.look(router)
    router.active.clear()
    reports.look(router)
    assert reports._watches == {}
