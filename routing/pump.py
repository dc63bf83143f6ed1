"""Running streams lent to a thread of machine code (`pump.c`), which passes their usual tokens on without Python.

A token that needs no attention then costs hardly more than its two system calls, waits for nothing that Python is busy
with, and a new request waits for no token. Needs `make compile`; without it every stream stays here.
"""

import asyncio
import contextlib
import logging
import os
import select
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from routing.turnstile import Turnstile

Native: Any
try:
    from routing._pump import Pump as Native  # type: ignore[import-not-found, no-redef, unused-ignore]
except ImportError:
    Native = None

if TYPE_CHECKING:
    from routing.relay import StreamRelay

logger = logging.getLogger(__name__)
Shape = tuple[bytes, bytes, bytes, bytes, bool]
"""The bytes of an event before and after a token's text; those before and after the reason in the event that ends the
answer, counted from its text on (empty: that event is not to be relayed); whether the usage after it is not for the
client."""
End = tuple[bytes, float, bytes, bytes, bytes]
"""Gaps (native floats, ms), when the last token came, bytes that the client has yet to get, whole chunks of the server
that need not be sent again but nobody has read, bytes of the server that nobody has looked at."""
LOOK_EVERY_S: Final = 0.5
"""How old the figures of a lent stream may be to whoever does not ask for them: far less than any limit of time."""


class Pump:
    """One per router. Its thread starts with the first stream."""

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._native: Any = None
        self._loop: Any = None  # uvloop's does not return what asyncio's is declared to.
        self._watched: select.epoll | None = None
        self._lent: dict[int, StreamRelay] = {}
        self._ended: dict[int, End] = {}
        """Of lent streams: what the thread gave back after the last token, until its relay takes it."""
        self._look: asyncio.TimerHandle | None = None

    @property
    def is_there(self) -> bool:
        return Native is not None

    @property
    def lent(self) -> int:
        """Streams that the thread relays, or has given back with an end that waits."""
        return len(self._lent)

    def lend(self, relay: "StreamRelay", sockets: tuple[int, int], shape: Shape, last_s: float) -> int | None:
        """From now on nobody else may read the first socket (the server's) or write to the second (the client's).

        `last_s`: when the last token came, on the monotonic clock. None: it cannot be lent, and stays with its relay.
        """
        try:
            if self._native is None:
                loop = asyncio.get_running_loop()
                self._watched = watched_by(loop)
                self._native = Native()
                self._loop = loop
                self._loop.add_reader(self._native.fileno(), self._take_back)
            key: int = self._native.attach(*sockets, shape, last_s)
        except OSError:
            return None  # No more descriptors, most likely.
        if self._watched is not None:
            with contextlib.suppress(OSError):  # It was not watched yet.
                self._watched.unregister(sockets[0])
        self._lent[key] = relay
        if self._look is None:
            self._look_later()
        return key

    def want_back(self, key: int) -> End:
        """The stream is its relay's again. Neither socket is used when this returns."""
        del self._lent[key]
        ended = self._ended.pop(key, None)
        if ended is not None:
            return ended
        end: End = self._native.detach(key)
        return end

    def settle(self, key: int) -> None:
        """Whatever the thread has given back of this stream is its relay's at once, an end that waits included."""
        self._take_back()
        self._give_back(key)

    def look(self) -> None:
        """Brings the records of lent streams up to date."""
        if self._lent:
            for key, (gaps, last_s) in self._native.progress():
                self._lent[key].count_lent(gaps, last_s)

    def _look_later(self) -> None:
        self._look = self._loop.call_later(LOOK_EVERY_S, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self.look()
        if self._lent:
            self._look_later()

    def _take_back(self) -> None:
        for key, end in self._native.take_back():
            self._ended[key] = end
            if has_all_tokens(end):
                self._turnstile.leave(partial(self._give_back, key))
            else:
                self._give_back(key)

    def _give_back(self, key: int) -> None:
        """Nothing happens when it was wanted back meanwhile."""
        end = self._ended.pop(key, None)
        if end is None:
            return
        relay = self._lent.pop(key)
        try:
            relay.take_back(*end)
        except Exception:  # The other streams are still to be given back.
            logger.exception("a stream that was lent broke the router")
            relay.break_off()

    def close(self) -> None:
        if self._native is None:
            return
        self._loop.remove_reader(self._native.fileno())
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._watched is not None:
            self._watched.close()
            self._watched = None
        self._native.close()
        self._native = None
        self._lent, self._ended = {}, {}


def watched_by(loop: Any) -> select.epoll | None:
    """The descriptors that uvloop waits for; None with another event loop.

    Told to read a socket no more, it goes on waiting for its next byte and takes it out of these only then: it
    would wake up once per lent stream for nothing.
    """
    descriptor = getattr(loop, "_get_backend_id", None)
    return None if descriptor is None else select.epoll.fromfd(os.dup(descriptor()))


def has_all_tokens(end: End) -> bool:
    """The client has the event that ends the answer; what is left is to read it, and to say that nothing follows."""
    _, _, unsent, answered, _ = end
    return bool(answered) and not unsent
