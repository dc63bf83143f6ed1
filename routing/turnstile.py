"""Lets requests begin one per turn of the event loop, so that those already under way go first."""

import asyncio
from collections import deque
from collections.abc import Callable


class Turnstile:
    """Requests that arrive in the same instant would otherwise go through each phase together: all are read and sent to
    prefill, then all are handed over, and the first token of each waits for the work of all. One by one, the first is
    at its end when the last begins, and running streams wait for one request's beginning, not for sixty-four.

    A request that arrives alone begins at once.
    """

    __slots__ = ("_loop", "_queue", "_turning")

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._turning = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Asked for once: each time costs a system call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def enter(self, begin: Callable[[], None]) -> None:
        """Calls `begin` now when nobody came in this turn, else in one of the next turns, first come first served."""
        if self._turning:
            self._queue.append(begin)
            return
        self._turning = True
        self.loop.call_soon(self._turn)
        begin()

    def _turn(self) -> None:
        if not self._queue:
            self._turning = False
            return
        self.loop.call_soon(self._turn)
        self._queue.popleft()()

    def __len__(self) -> int:
        return len(self._queue)
