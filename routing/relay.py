"""Passes a server's event stream to the client as it comes, counting tokens on the way."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Final

from routing.client import Sink
from routing.clock import Clock
from routing.errors import BadAnswer, LegError, StreamError, TimedOut
from routing.http1 import unframed
from routing.leg import Leg
from routing.pump import Pump
from routing.record import Record
from routing.reply import Reply
from routing.sse import EventTooLong, Json, Scanner
from routing.template import FrameTemplate

LEND_AFTER: Final = 2
"""Usual tokens in a row, once something else came in between: one that brings odd events in turn is not worth it."""


AT_ONCE: Final = 6
"""Tokens in one read: they come faster than they can be told apart, and what remains is soon read here too."""
CODE_WITHIN: Final = re.compile(r"'code': ([45]\d\d)\}")
"""In the messages API vLLM fails on the event that tells it of an error, and quotes it."""


class StreamRelay(Sink):
    """One stream. Nothing goes out before its first token, so that a stream that never brings one can be tried again.

    Once its tokens look alike it is lent to the pump, which gives it back with whatever is not such a token.

    `ended` gives None when the stream brought its whole answer, else the error. (It is not raised: a traceback per
    broken stream is garbage that only the collector can find.)
    """

    __slots__ = (
        "_clock",
        "_connection",
        "_gaps",
        "_held",
        "_idle_s",
        "_idle_timer",
        "_is_broken",
        "_is_held",
        "_key",
        "_last",
        "_leg",
        "_life",
        "_on_begin",
        "_on_complete",
        "_on_first_token",
        "_pump",
        "_record",
        "_reply",
        "_scanner",
        "_template",
        "_usual",
        "begun",
        "ended",
    )

    def __init__(
        self,
        leg: Leg,
        scanner: Scanner,
        reply: Reply,
        record: Record,
        clock: Clock,
        *,
        begin: Callable[[], None],
        first_token: Callable[[], None],
        complete: Callable[[], None],
        idle_s: float | None,
        pump: Pump | None,
    ) -> None:
        """`begin` sends the answer's head; `first_token` is called once its time is in the record; `complete` ends the
        answer in the same turn of the event loop, so that its end goes out together with its last event. Without `pump`
        it is not lent."""
        assert leg.connection is not None
        loop = leg.connection.loop
        self._leg = leg
        self._connection = leg.connection
        self._scanner = scanner
        self._reply = reply
        self._record = record
        self._clock = clock
        self._on_begin = begin
        self._on_first_token = first_token
        self._on_complete = complete
        self._held: list[bytes] = []
        self._last = 0.0
        self._life = leg.backend.life
        self._gaps = record.gaps_ms
        self._template: FrameTemplate | None = None
        self._pump: Pump | None = pump if pump is not None and pump.is_there else None
        self._key: int | None = None
        """Of the stream, while the pump has it."""
        self._usual = 0
        """Tokens in a row that looked alike."""
        self._is_broken = self._is_held = False
        self._idle_s = idle_s
        self._idle_timer = loop.call_later(idle_s, self._check_idle) if idle_s is not None else None
        self.begun = False
        self.ended: asyncio.Future[LegError | None] = loop.create_future()
        reply.on_pause = self._pause
        self._connection.stream_to(self)

    # Sink

    def take(self, data: bytes, at: int) -> int:
        template = self._template
        if template is None or self._scanner.carry:
            return at
        if at == 0 and template.is_token(data):
            now = self._connection.last_byte_at
            self._gaps.append((now - self._last) * 1e3)
            self._last = self._life.moved_at = now
            self._reply.write_frames(data)
            if self._pump is not None:
                self._usual += 1
                if self._usual >= LEND_AFTER:
                    self._lend(self._pump)
            return len(data)
        count, end = template.run(data, at)
        if count:
            if count >= AT_ONCE:
                self._usual = 0
            self._count(count)
            self._reply.write_frames(data[at:end])
        return end

    def part(self, data: bytes) -> None:
        if self._is_broken:
            return
        self._usual = 0
        try:
            out, counting = self._scanner.feed(data)
        except EventTooLong as error:
            self._connection.close()
            self._end(BadAnswer(str(error)))
            return
        except (AttributeError, KeyError, TypeError):  # An event in a shape that no engine gives it.
            self.break_off()
            return
        if counting:
            self._count(counting)
        if self.begun:
            if out:
                self._reply.write(out)
        else:
            self._held.append(out)
            if counting or self._scanner.ended:
                self._begin()
        if self._template is None and self._scanner.prefix and self.begun:
            self._template = FrameTemplate(self._scanner.prefix, self._scanner.suffix)
            self._usual = LEND_AFTER

    def flush(self) -> None:
        if self.begun:
            self._reply.flush()
            if self._usual >= LEND_AFTER and self._pump is not None and self._is_between_events():
                self._lend(self._pump)

    def closed(self, error: LegError | None) -> None:
        scanner = self._scanner
        if error is None and scanner.carry:
            self.part(b"\n\n")  # A last event whose blank line is missing.
        if self.begun and (last := scanner.rest()):
            self._reply.write(last)
        if scanner.is_complete:
            error = None
        elif scanner.error is not None:
            error = self._as_it_came(stream_error(scanner.error))
        elif error is None:
            missing = "its end marker" if scanner.ended else "a finish reason"
            error = BadAnswer(f"the stream ended without {missing}: the engine gave no complete answer")
        self._end(error)

    # Inside

    def _as_it_came(self, error: StreamError) -> StreamError:
        """Where no other server does better, the client hears of it as the engine said it."""
        if not self.begun:
            error.held = b"".join(self._held)
        return error

    def _count(self, counting: int) -> None:
        now = self._connection.last_byte_at
        gaps = self._gaps
        if self._record.first_token_ms is None:
            self._record.first_token_ms = self._clock.ms_at(now)
            self._leg.gave_tokens()
            self._on_first_token()
        else:
            gaps.append((now - self._last) * 1e3)
        if counting > 1:
            gaps.extend([0.0] * (counting - 1))
        self._last = self._life.moved_at = now

    def _begin(self) -> None:
        self.begun = True
        self._on_begin()
        held, self._held = b"".join(self._held), []
        self._reply.write(held)
        if self._reply.paused:
            self._pause(True)

    def _pause(self, paused: bool) -> None:
        if paused:
            self._connection.pause()
        else:
            self._connection.resume()
        self._hold(paused)

    def _hold(self, held: bool) -> None:
        """A client that reads nothing is no fault of the server's."""
        if held is self._is_held:
            return
        self._is_held = held
        if held:
            self._leg.hold()
        else:
            self._leg.let_go()

    # Lent to the pump

    def _is_between_events(self) -> bool:
        return self._connection.at_boundary and not self._scanner.carry and not self._scanner.ended

    def _lend(self, pump: Pump) -> None:
        server, client = self._connection.descriptor(), self._reply.descriptor()
        if server is None or client is None:
            return
        self._key = pump.lend(self, (server, client), self._scanner.shape(), self._last)
        if self._key is None:
            self._pump = None
        else:
            self._connection.lend()

    def count_lent(self, gaps: bytes, last_s: float) -> None:
        """`gaps`: native floats, in ms."""
        self._gaps.frombytes(gaps)
        self._last = last_s
        self._life.moved_at = max(self._life.moved_at, last_s)
        self._connection.moved_at(last_s)

    def take_back(self, gaps: bytes, last_s: float, unsent: bytes, answered: bytes, unread: bytes) -> None:
        """The pump gives the stream back, at a byte that is not for it."""
        self._key = None
        self._usual = 0
        self.count_lent(gaps, last_s)
        if unsent:
            self._reply.write_frames(unsent)
        if answered:
            self._scanner.feed(unframed(answered))
        self._connection.take_back(unread)

    def settle(self) -> None:
        """Reads what has come of a lent stream: it may be its end."""
        if self._key is not None and self._pump is not None:
            self._pump.settle(self._key)

    def break_off(self) -> None:
        """It cannot be read any further."""
        self._is_broken = True
        self._connection.close()
        self._end(BadAnswer(f"{self._connection.pool.name} sent an event that cannot be read"))

    def _want_back(self) -> None:
        key, self._key = self._key, None
        if key is not None and self._pump is not None:
            gaps, last_s, *_ = self._pump.want_back(key)
            self.count_lent(gaps, last_s)

    def _check_idle(self) -> None:
        """One timer per stream, set anew only when it rings: tokens cost nothing here."""
        assert self._idle_s is not None
        if self._key is not None and self._pump is not None:
            self._pump.look()
            self.settle()
        if self.ended.done():
            return
        left_s = self._connection.last_byte_at + self._idle_s - time.monotonic()
        if left_s <= 0 and not self._connection.paused:
            self._connection.close()
            self._end(TimedOut(f"{self._connection.pool.name} sent nothing for the idle limit of {self._idle_s:g} s"))
            return
        wait_s = left_s if left_s > 0 else self._idle_s
        self._idle_timer = asyncio.get_running_loop().call_later(wait_s, self._check_idle)

    def _end(self, error: LegError | None) -> None:
        self.stop()
        if not self.ended.done():
            self.ended.set_result(error)
            if error is None:
                self._on_complete()

    def stop(self) -> None:
        """Lets go of the client, the pump and the clock, and tells of the last token; harmless when repeated."""
        self._want_back()
        if self._last:
            self._record.last_token_ms = self._clock.ms_at(self._last)
        self._reply.on_pause = None
        self._hold(False)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def stream_error(error: Json) -> StreamError:
    code = error.get("code")
    if code is None and (within := CODE_WITHIN.search(str(error.get("message")))):
        code = int(within[1])
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return StreamError(f"the engine reported an error in its stream: {error.get('message')}", status)
