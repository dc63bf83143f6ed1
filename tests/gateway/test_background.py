"""Background loops are kept running, and end when asked to."""

import asyncio
from itertools import count

import pytest

from console import background as module
from console.background import Background
from tests.waiting import LIMIT_S, until


async def test_a_loop_that_crashes_is_logged_and_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RESTART_AFTER_S", 0.0)
    starts = count()

    async def crash() -> None:
        next(starts)
        raise RuntimeError("no luck")

    background = Background()
    background.start("counting sheep", crash)
    await until(lambda: background.restarts >= 2)
    await background.stop()
    assert "counting sheep crashed and starts again" in caplog.text
    assert "no luck" in caplog.text


async def test_stopping_ends_every_loop() -> None:
    ended: list[int] = []

    async def run() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    background = Background()
    for _ in range(3):
        background.start("waiting", run)
    await asyncio.sleep(0)
    await background.stop()
    assert len(ended) == 3


async def test_a_loop_that_misses_the_first_request_to_end_gets_another() -> None:
    missed: list[int] = []

    async def run() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if missed:
                    raise
                missed.append(1)

    background = Background()
    background.start("hard of hearing", run)
    await asyncio.sleep(0)
    await asyncio.wait_for(background.stop(), LIMIT_S)
    assert missed == [1]
