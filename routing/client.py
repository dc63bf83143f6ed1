"""Requests to servers: an HTTP/1.1 client on a protocol of its own. `routing.pool` keeps its connections.

Bytes are handed on in the call of the event loop that brought them. A connection belongs to one request at a time and
goes back to its pool once: whole, or closed.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Final, cast

from routing.bodies import Sendable
from routing.errors import BadAnswer, ConnectionLost, LegError
from routing.http1 import Decoder, Head, Malformed, decoder_for

if TYPE_CHECKING:
    from routing.pool import Pool

STALE_WITHIN_S = 1.0
"""A kept connection that breaks this soon after sending, without a byte of answer, was closed before it was used."""
MAX_UNREAD_BYTES: Final = 256 * 1024


class Sink:
    """Who takes a body. Called on the event loop, must return at once."""

    __slots__ = ()

    def take(self, data: bytes, at: int) -> int:
        """Offered `data` from `at` on where an HTTP chunk begins: takes any whole chunks, tells where it stopped."""
        return at

    def part(self, data: bytes) -> None:
        """Some bytes of the body, however they were cut."""
        raise NotImplementedError

    def flush(self) -> None:
        """All that came is handed over, and the body goes on."""

    def closed(self, error: LegError | None) -> None:
        """The end: None when the body is complete."""
        raise NotImplementedError


class Stale(Exception):
    """The kept connection was gone before the request reached the server."""


class Connection:
    """One connection; everything below `request` is reset for each request.

    It is an `asyncio.Protocol` by its methods. Were it one by inheritance, machine code would look each of its
    attributes up in a dictionary.
    """

    __slots__ = (
        "_decoder",
        "_error",
        "_head_ready",
        "_is_lost",
        "_sink",
        "_unread",
        "_unread_bytes",
        "bytes_received",
        "head",
        "head_at",
        "idle_since",
        "last_byte_at",
        "loop",
        "method",
        "paused",
        "pool",
        "sent_at",
        "transport",
        "uses",
    )

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.uses = 0
        self._is_lost = False
        self._reset()

    def _reset(self) -> None:
        self.head: Head | None = None
        self.method = ""
        self.sent_at = self.head_at = self.last_byte_at = 0.0
        self.bytes_received = False
        self.paused = False
        self._decoder: Decoder | None = None
        self._error: LegError | None = None
        self._head_ready: asyncio.Future[None] | None = None
        self._unread: list[bytes] = []
        """Body bytes, undecoded, from before somebody takes them, or bytes from after the body's end."""
        self._unread_bytes = 0
        self._sink: Sink | None = None

    # One request

    def send(self, method: str, request: Sendable) -> "asyncio.Future[None]":
        """Writes a request; the future is done when the answer's head is there."""
        assert self.transport is not None
        self.uses += 1
        self.method = method
        self.sent_at = self.last_byte_at = time.monotonic()
        self.head = Head()
        self._head_ready = self.loop.create_future()
        if isinstance(request, list):
            self.transport.writelines(request)
        else:
            self.transport.write(request)
        return self._head_ready

    def stream_to(self, sink: Sink) -> None:
        """Hands the body to `sink`, beginning with what came already. Its `closed` is called once, maybe at once."""
        self._sink = sink
        unread, self._unread = b"".join(self._unread), []
        self.resume()
        if unread:
            self._decode(unread, 0)
        if self._is_lost:
            self._end_at_eof()
        self._tell_end()

    def read(self, limit_bytes: int) -> "asyncio.Future[bytes]":
        """The whole body; raises `LegError`."""
        collector = _Collector(self, limit_bytes)
        self.stream_to(collector)
        return collector.body

    @property
    def is_complete(self) -> bool:
        return self._decoder is not None and self._decoder.done

    def release(self) -> None:
        """Gives the connection back: to the pool when its answer is complete, else closed. Harmless when repeated."""
        self.pool.take_back(self)

    def pause(self) -> None:
        if not self.paused and self.transport is not None and not self.transport.is_closing():
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused and self.transport is not None and not self.transport.is_closing():
            self.paused = False
            self.last_byte_at = time.monotonic()
            self.transport.resume_reading()

    @property
    def at_boundary(self) -> bool:
        """The next byte of the answer begins an HTTP chunk."""
        return self._decoder is not None and self._decoder.at_boundary

    def descriptor(self) -> int | None:
        """Of the socket, when another may read it in our place: what comes is not encrypted, we are not waiting, and
        the server has got all of its request, as it need not have when it begins to answer."""
        transport = self.transport
        if transport is None or transport.is_closing() or self.paused or transport.get_extra_info("sslcontext"):
            return None
        if transport.get_write_buffer_size():
            return None
        descriptor: int = transport.get_extra_info("socket").fileno()
        return descriptor

    def lend(self) -> None:
        """Another reads the socket from now on, until `take_back`."""
        assert self.transport is not None
        self.transport.pause_reading()

    def moved_at(self, moved_s: float) -> None:
        """Another saw bytes at this moment, on the monotonic clock."""
        self.last_byte_at = max(self.last_byte_at, moved_s)

    def take_back(self, unread: bytes) -> None:
        """We read again, beginning with what the other has read and left."""
        if self.transport is None or self.transport.is_closing():
            return
        if not self.paused:
            self.transport.resume_reading()
        if unread:
            self.data_received(unread)

    # As an asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance.

    def pause_writing(self) -> None:
        """What is sent is whole in memory already."""

    def resume_writing(self) -> None:
        """See above."""

    def data_received(self, data: bytes) -> None:
        self.last_byte_at = time.monotonic()
        sink, decoder = self._sink, self._decoder
        if sink is not None and decoder is not None:
            # A token of a stream usually ends here: a whole chunk, passed on in the frame it came in.
            at = sink.take(data, 0) if decoder.at_boundary else 0
            if at < len(data):
                self._decode(data, at)
                self._tell_end()
        else:
            self._before_body(data)

    def _before_body(self, data: bytes) -> None:
        """The answer's head, and body bytes that nobody takes yet."""
        if self.head is None:
            self.close()  # Bytes that nobody asked for.
            return
        self.bytes_received = True
        if self._decoder is None:
            try:
                rest = self.head.feed(data)
                if rest is None:
                    return
                self._decoder = decoder_for(self.head, self.method)
            except Malformed as error:
                self._fail(self._malformed(error))
                return
            data = rest
            self.head_at = self.last_byte_at
            self._answer_head(None)
        if data:
            self._unread.append(data)
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_UNREAD_BYTES:
                self.pause()

    def _decode(self, data: bytes, at: int) -> None:
        sink, decoder = self._sink, self._decoder
        assert sink is not None
        assert decoder is not None
        try:
            while at < len(data) and not decoder.done:
                if decoder.at_boundary and (taken := sink.take(data, at)) > at:
                    at = taken
                    continue
                piece, at = decoder.step(data, at)
                if piece:
                    sink.part(piece)
            if not decoder.done:
                sink.flush()
            elif at < len(data):
                self._unread.append(data[at:])
        except Malformed as error:
            self._fail(self._malformed(error))

    def _malformed(self, error: Malformed) -> LegError:
        return BadAnswer(f"{self.pool.name} answered with something that is not HTTP: {error}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.forget(self)
        self._is_lost = True
        if self.head is None:
            return
        if self._decoder is None:
            self._fail(self._loss())
        elif self._sink is not None:
            self._end_at_eof()
            self._tell_end()

    def _end_at_eof(self) -> None:
        """The connection is gone and every byte of it was decoded."""
        assert self._decoder is not None
        if self._decoder.ends_at_eof:
            self._decoder.done = True
        elif not self._decoder.done:
            self._error = self._error or self._loss()

    def _loss(self) -> LegError:
        answered = "in the middle of its answer" if self.bytes_received else "without answering"
        return ConnectionLost(
            f"{self.pool.name} closed the connection {answered}", before_answer=not self.bytes_received
        )

    def _answer_head(self, error: Exception | None) -> bool:
        """False: nobody waits for it."""
        ready, self._head_ready = self._head_ready, None
        if ready is None or ready.done():
            return False
        if error is None:
            ready.set_result(None)
        else:
            ready.set_exception(error)
        return True

    def _fail(self, error: LegError) -> None:
        self.close()
        stale = self.uses > 1 and not self.bytes_received and time.monotonic() - self.sent_at < STALE_WITHIN_S
        if not self._answer_head(Stale() if stale and isinstance(error, ConnectionLost) else error):
            self._error = self._error or error
        self._tell_end()

    def _tell_end(self) -> None:
        if self._sink is None or not (self.is_complete or self._error):
            return
        sink, self._sink = self._sink, None
        error, self._error = self._error, None
        sink.closed(None if self.is_complete else error)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def can_be_kept(self) -> bool:
        """Not while a request is still going out: a server that answered before it was complete may never read the
        rest, and what is sent next would wait behind it. Nor once more came than the answer, which would be taken for
        the beginning of the next one."""
        head, transport = self.head, self.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() or self._unread:
            return False
        return self.is_complete and head is not None and head.keep_alive

    def rest(self) -> None:
        """Forgets the request; between requests nothing is expected from the server."""
        self.resume()
        self._reset()
        self.idle_since = time.monotonic()


class _Collector(Sink):
    """Gathers a whole body."""

    __slots__ = ("_connection", "_limit_bytes", "_parts", "_size", "body")

    def __init__(self, connection: Connection, limit_bytes: int) -> None:
        self.body: asyncio.Future[bytes] = connection.loop.create_future()
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def part(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit_bytes:
            self._connection.close()
            return
        self._parts.append(data)

    def closed(self, error: LegError | None) -> None:
        if self.body.done():
            return
        if error is None:
            self.body.set_result(b"".join(self._parts))
        else:
            self.body.set_exception(error)
