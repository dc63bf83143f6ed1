"""Waiting for a condition, in a test or on its event loop."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 180.0
"""Not what it takes: what a slow machine with other work may take."""
T = TypeVar("T")


def wait_for(find: Callable[[], T | None], what: str = "", limit_s: float = LIMIT_S) -> T:
    """The first true result of `find`. Raises AssertionError with `what` when there is none in time."""
    deadline = time.monotonic() + limit_s
    while not (found := find()):
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s in vain for {what or find.__name__}"
        time.sleep(0.02)
    return found


def wait_until(condition: Callable[[], bool], what: str = "", limit_s: float = LIMIT_S) -> None:
    """Raises AssertionError with `what` when it does not come true in time."""
    wait_for(condition, what, limit_s)


async def until(condition: Callable[[], bool], what: str = "", limit_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s in vain for {what}"
        await asyncio.sleep(0.01)
