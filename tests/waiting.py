"""Waiting for a condition, in a test or on its event loop."""

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 15.0


def wait_until(condition: Callable[[], bool], what: str = "", limit_s: float = LIMIT_S) -> None:
    """Raises AssertionError with `what` when it does not come true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], what: str = "", limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.01)
