"""Frames are numbered without gaps, shared between viewers, and a slow viewer loses detail but is told so."""

import asyncio
from typing import Any

import orjson
import pytest

from console.live.fanout import EVENTS_PER_FRAME, FRAMES_QUEUED, Channel, Viewer
from tests.waiting import LIMIT_S


def event(number: int = 0) -> Any:
    return {"type": "ttft", "t": float(number)}


@pytest.fixture
def channel() -> Channel:
    return Channel("stream-a")


def watch(channel: Channel) -> Viewer:
    viewer = Viewer(1, "session")
    channel.viewers.add(viewer)
    return viewer


async def take(viewer: Viewer) -> Any:
    text = await asyncio.wait_for(viewer.take(), LIMIT_S)
    assert text is not None
    return orjson.loads(text)


def tell(channel: Channel, *numbers: int) -> None:
    for number in numbers:
        channel.add(event(number))
    channel.flush(0.0)


async def test_a_frame_holds_what_came_since_the_last(channel: Channel) -> None:
    viewer = watch(channel)
    tell(channel, 1, 2)
    frame = await take(viewer)
    assert frame == {"type": "events", "stream": "stream-a", "seq": 1, "dropped": 0, "events": [event(1), event(2)]}


async def test_numbers_follow_each_other(channel: Channel) -> None:
    viewer = watch(channel)
    for number in range(5):
        tell(channel, number)
    assert [(await take(viewer))["seq"] for _ in range(5)] == [1, 2, 3, 4, 5]


def test_without_news_there_is_no_frame(channel: Channel) -> None:
    channel.flush(0.0)
    assert channel.seq == 0


async def test_a_heartbeat_is_a_numbered_frame_without_events(channel: Channel) -> None:
    viewer = watch(channel)
    channel.heartbeat(0.0)
    assert (await take(viewer))["events"] == []


async def test_a_burst_is_sent_in_several_frames(channel: Channel) -> None:
    viewer = watch(channel)
    tell(channel, *range(EVENTS_PER_FRAME + 1))
    assert [len((await take(viewer))["events"]) for _ in range(2)] == [EVENTS_PER_FRAME, 1]


async def test_a_slow_viewer_loses_the_oldest_and_is_told_how_many(channel: Channel) -> None:
    slow = watch(channel)
    for number in range(FRAMES_QUEUED + 5):
        tell(channel, number, number)
    frame = await take(slow)
    assert (frame["seq"], frame["dropped"]) == (6, 10)
    assert (await take(slow))["dropped"] == 0


async def test_a_slow_viewer_costs_a_fast_one_nothing(channel: Channel) -> None:
    slow, fast = watch(channel), watch(channel)
    for number in range(FRAMES_QUEUED * 3):
        tell(channel, number)
        assert (await take(fast))["seq"] == number + 1
    assert len(slow._frames) == FRAMES_QUEUED


def test_viewers_share_one_encoded_frame(channel: Channel) -> None:
    one, other = watch(channel), watch(channel)
    tell(channel, 1)
    assert one._frames[0] is other._frames[0]


def test_nothing_is_encoded_when_nobody_watches(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.live.fanout.orjson.dumps", None)
    tell(channel, 1)
    assert channel.seq == 1


async def test_a_dismissed_viewer_gets_no_more_frames(channel: Channel) -> None:
    viewer = watch(channel)
    tell(channel, 1)
    viewer.dismiss(4401)
    assert await viewer.take() is None
    assert viewer.close_code == 4401


def test_charts_hold_the_events_up_to_the_number_and_no_more(channel: Channel) -> None:
    tell(channel, 1)
    channel.add(event(2))
    assert (channel.seq, len(orjson.loads(channel.encoded_charts(0.0))["ttft"])) == (1, 1)


def test_charts_are_encoded_once_between_two_frames(channel: Channel) -> None:
    tell(channel, 1)
    assert channel.encoded_charts(0.0) is channel.encoded_charts(0.0)
    first = channel.encoded_charts(0.0)
    tell(channel, 2)
    assert channel.encoded_charts(0.0) != first
