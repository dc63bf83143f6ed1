"""Counts of every server reach its card twice a second, and only when there is something to say."""

from typing import Any

import pytest

from console.database import DatabaseThread
from console.gateway.loads import RouterLoad
from console.live import load
from console.live.collect import Collector
from console.live.load import LoadWatch, load_event


@pytest.fixture
def collector() -> Collector:
    return Collector(DatabaseThread("unused"))


def told(collector: Collector, deployment_id: int = 7) -> list[Any]:
    channel = collector.channel(deployment_id)
    pending, channel._pending = channel._pending, []
    return pending


@pytest.fixture
def drawn() -> list[int]:
    """Servers whose whole card was published."""
    return []


def watch(collector: Collector, drawn: list[int] | None = None, servers: dict[int, int] | None = None) -> LoadWatch:
    async def draw(server_id: int) -> None:
        if drawn is not None:
            drawn.append(server_id)

    return LoadWatch(collector, lambda: {4: 7} if servers is None else servers, dict, draw)


def test_router_counts_and_engine_figures_are_one_event() -> None:
    said = {"running": 2, "waiting": 0, "kv_usage": 0.123456, "tokens_per_s": 99.96, "engine_at": 1700000000.123}
    event = load_event(4, RouterLoad(3, 1), said)
    assert event == {
        "type": "load",
        "id": 4,
        "inflight": 3,
        "handoffs": 1,
        "running": 2,
        "waiting": 0,
        "kv_usage": 0.1235,
        "tokens_per_s": 100.0,
        "engine_at": 1700000000.1,
    }


def test_what_an_engine_has_not_said_is_left_out() -> None:
    assert set(load_event(4, RouterLoad(), {"tokens_per_s": None})) == {"type", "id", "inflight", "handoffs"}


def test_counts_are_told_when_they_change(collector: Collector) -> None:
    watched = watch(collector)
    watched.tell({4: RouterLoad(1, 0)})
    watched.tell({4: RouterLoad(1, 0)})
    watched.tell({4: RouterLoad(2, 0)})
    watched.tell({})
    assert [event["inflight"] for event in told(collector)] == [1, 2, 0]


def test_counts_are_repeated_for_cards_that_were_drawn_anew(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "REPEAT_AFTER_S", 0.0)
    watched = watch(collector)
    watched.tell({4: RouterLoad(1, 0)})
    watched.tell({4: RouterLoad(1, 0)})
    assert len(told(collector)) == 2


def test_a_server_that_ended_is_forgotten(collector: Collector) -> None:
    servers = {4: 7}
    watched = watch(collector, servers=servers)
    watched.tell({})
    servers.clear()
    watched.tell({})
    assert watched._told == {}


async def test_a_card_is_drawn_anew_when_its_server_is_left_alone_and_when_it_is_used_again(
    collector: Collector, drawn: list[int]
) -> None:
    watched = watch(collector, drawn)
    await watched.look({4: RouterLoad(0, 0, "connection refused")})
    await watched.look({4: RouterLoad(1, 0, "timed out")})
    assert drawn == [4]
    await watched.look({4: RouterLoad(1, 0)})
    assert drawn == [4, 4]
    await watched.look({4: RouterLoad(1, 0, is_silent=True)})
    assert drawn == [4, 4, 4]
