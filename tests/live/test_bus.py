"""Publishing live events from synchronous code."""

from typing import Any

import orjson
import pytest
import redis
from pytest_django import Settings

from console.live import bus
from console.live.events import ServerRemovedEvent

GONE: ServerRemovedEvent = {"type": "server_removed", "id": 4}


def only_entry(valkey: "redis.Redis") -> dict[bytes, bytes]:
    found: Any = valkey.xrange(bus.stream())
    assert len(found) == 1
    return dict(found[0][1])


def test_events_reach_the_stream_with_their_deployment(valkey: "redis.Redis") -> None:
    bus.publish(7, [GONE])
    fields = only_entry(valkey)
    assert fields[b"d"] == b"7"
    assert orjson.loads(fields[b"e"]) == [GONE]


def test_events_for_everybody_name_no_deployment(valkey: "redis.Redis") -> None:
    bus.publish(None, [GONE])
    fields = only_entry(valkey)
    assert fields[b"d"] == b""


def test_valkey_forgets_what_is_older_than_the_history(valkey: "redis.Redis") -> None:
    for number in range(300):
        valkey.xadd(bus.stream(), {"d": "1", "e": "[]"}, id=f"1000-{number}")
    bus.publish(7, [GONE])
    assert valkey.xlen(bus.stream()) <= 101  # whole nodes of 100 entries are cut


def test_a_change_goes_through_while_valkey_is_away(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    bus.publish(7, [GONE])
    assert "1 live events were not published" in caplog.text
