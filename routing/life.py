"""Whether a server does the work it was given. Silent: it has work, and for long no token and no answer came.

What an engine whose core is stuck goes on saying is no sign of life: the heads of its streams and their first events,
refusals, `/health`, its model card, counts of tokens.
"""

import time
from typing import Final

SILENT_STREAMS_S: Final = 20.0
SILENT_WHOLE_S: Final = 120.0
"""A server that has worked in vain for so long is avoided while there is another, whatever its /health says. The
second where only whole answers are awaited, a prefill server's among them."""
TRY_AGAIN_S: Final = 15.0
"""After the last client of a silent server gave up, nothing is sent there for so long; then one request at a time,
until it brings a token."""


class Work:
    """Requests of one kind at one server, and for how long it has worked at such in vain: all of the time since its
    last sign of life in which it had one to do, however many clients gave up meanwhile. Idle time is none of it."""

    __slots__ = ("counted_at", "in_vain_s", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.in_vain_s = 0.0
        """Up to `counted_at`, when one ended that brought nothing, or the first began."""
        self.counted_at = 0.0

    def begin(self, moved_at: float) -> None:
        if not self.under_way:
            if moved_at >= self.counted_at:
                self.in_vain_s = 0.0
            self.counted_at = time.monotonic()
        self.under_way += 1

    def end(self, now: float, moved_at: float) -> None:
        self.in_vain_s = self.until(now, moved_at)
        self.counted_at = now
        self.under_way -= 1

    def until(self, now: float, moved_at: float) -> float:
        """For how long in vain, while one is under way."""
        if moved_at >= self.counted_at:
            return now - moved_at
        return self.in_vain_s + now - self.counted_at


class Life:
    """Of one server. Times are of the monotonic clock."""

    __slots__ = ("given_up_at", "held", "moved_at", "streams", "work")

    def __init__(self) -> None:
        self.moved_at = 0.0
        """When a token or a whole answer last came."""
        self.given_up_at = 0.0
        """When a request last left it while it was silent."""
        self.work = Work()
        """All that waits for its engine and for nobody else."""
        self.streams = Work()
        """Of this, what shows token by token how it goes on."""
        self.held = 0
        """Requests that it may not go on with before their clients have read what they were sent."""

    def begin(self, *, shows_tokens: bool) -> None:
        self.work.begin(self.moved_at)
        if shows_tokens:
            self.streams.begin(self.moved_at)

    def end(self, now: float, *, shows_tokens: bool) -> None:
        """Whatever came of it, for the engine had it to do."""
        if self.is_silent(now):
            self.given_up_at = now
        self._end(now, shows_tokens)

    def drop(self, *, shows_tokens: bool) -> None:
        """It ended, and that tells nothing of the engine: it was refused, or never sent."""
        self.work.under_way -= 1
        self.streams.under_way -= shows_tokens

    def hold(self, now: float, *, shows_tokens: bool) -> None:
        self._end(now, shows_tokens)
        self.held += 1

    def let_go(self, *, shows_tokens: bool) -> None:
        self.held -= 1
        self.begin(shows_tokens=shows_tokens)

    def _end(self, now: float, shows_tokens: bool) -> None:
        self.work.end(now, self.moved_at)
        if shows_tokens:
            self.streams.end(now, self.moved_at)

    def is_silent(self, now: float, *, is_chosen: bool = False) -> bool:
        """`is_chosen`: it will have something to do, once a prefill server is done."""
        work, streams, moved_at = self.work, self.streams, self.moved_at
        if self.given_up_at > moved_at:
            return work.under_way > 0 or is_chosen or now - self.given_up_at < TRY_AGAIN_S
        if streams.under_way and streams.until(now, moved_at) > SILENT_STREAMS_S:
            return True
        return work.under_way > 0 and work.until(now, moved_at) > SILENT_WHOLE_S
