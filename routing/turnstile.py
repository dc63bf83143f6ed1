"""Lets requests begin one per turn of the event loop, so that those already under way go first."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

PATIENCE_S = 0.02
"""How long an end may wait for beginnings: when requests come faster than they can begin there is always one."""


class Turnstile:
    """Requests that arrive in the same instant would otherwise go through each phase together: all are read and sent to
    prefill, then all are handed over, and the first token of each waits for the work of all. One by one, the first is
    at its end when the last begins, and running streams wait for one request's beginning, not for sixty-four.

    A request that arrives alone begins at once.

    The end of an answer whose last token has gone out waits until none wants to begin, and goes in a turn of its own:
    who has all tokens sees no difference, who waits for the first one does.
    """

    __slots__ = ("_ends", "_has_begun", "_loop", "_queue", "_turning")

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._ends: deque[tuple[float, Callable[[], None]]] = deque()
        """And when, on the monotonic clock, they have waited long enough."""
        self._turning = False
        self._has_begun = False
        """A request did in this turn."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Asked for once: each time costs a system call."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def enter(self, begin: Callable[[], None]) -> None:
        """Calls `begin` now when nobody came in this turn, else in one of the next turns, first come first served."""
        if self._has_begun or self._queue:
            self._queue.append(begin)
            return
        self._has_begun = True
        self._keep_turning()
        begin()

    def leave(self, end: Callable[[], None]) -> None:
        """Calls `end` in a turn in which nobody waits to begin, or when its patience is over."""
        self._ends.append((time.monotonic() + PATIENCE_S, end))
        self._keep_turning()

    def _keep_turning(self) -> None:
        if not self._turning:
            self._turning = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        ends, queue = self._ends, self._queue
        self._turning = self._has_begun = False
        if ends and (not queue or ends[0][0] <= time.monotonic()):
            self._keep_turning()
            ends.popleft()[1]()
        elif queue:
            self._has_begun = True
            self._keep_turning()
            queue.popleft()()

    def __len__(self) -> int:
        """Requests that wait to begin."""
        return len(self._queue)
