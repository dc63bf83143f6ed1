"""Requests to servers: an HTTP/1.1 client on a protocol of its own, and one pool of connections per server.

Bytes are handed on in the call of the event loop that brought them. A connection belongs to one request at a time and
goes back to its pool once: whole, or closed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

from routing.bodies import Sendable
from routing.errors import BadAnswer, ConnectFailed, ConnectionLost, LegError, ServerBusy, TimedOut
from routing.http1 import Decoder, Head, Malformed, decoder_for

IDLE_LIMIT_S = 4.0
"""Engines close idle connections after 5 s; ours go first, so that no request is sent into a closing one."""
STALE_WITHIN_S = 1.0
"""A kept connection that breaks this soon after sending, without a byte of answer, was closed before it was used."""
MAX_UNREAD_BYTES = 256 * 1024


class Sink(Protocol):
    """Who takes a body. Called on the event loop, must return at once."""

    def take(self, data: bytes, at: int) -> int:
        """Offered `data` from `at` on where an HTTP chunk begins: takes any whole chunks, tells where it stopped."""

    def part(self, data: bytes) -> None:
        """Some bytes of the body, however they were cut."""

    def flush(self) -> None:
        """All that came is handed over, and the body goes on."""

    def closed(self, error: LegError | None) -> None:
        """The end: None when the body is complete."""


class _Stale(Exception):
    """The kept connection was gone before the request reached the server."""


class Connection(asyncio.Protocol):
    """One connection; everything below `request` is reset for each request."""

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
        """Body bytes, undecoded, from before somebody takes them."""
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
        """Of the socket, when another may read it in our place: what comes is not encrypted, and we are not waiting."""
        transport = self.transport
        if transport is None or transport.is_closing() or self.paused or transport.get_extra_info("sslcontext"):
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
        self.pool.last_byte_at = max(self.pool.last_byte_at, moved_s)

    def take_back(self, unread: bytes) -> None:
        """We read again, beginning with what the other has read and left."""
        if self.transport is None or self.transport.is_closing():
            return
        if not self.paused:
            self.transport.resume_reading()
        if unread:
            self.data_received(unread)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance.

    def data_received(self, data: bytes) -> None:
        self.last_byte_at = self.pool.last_byte_at = time.monotonic()
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
            while at < len(data):
                if decoder.at_boundary and (taken := sink.take(data, at)) > at:
                    at = taken
                    continue
                piece, at = decoder.step(data, at)
                if piece:
                    sink.part(piece)
            if not decoder.done:
                sink.flush()
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

    def _answer_head(self, error: Exception | None) -> None:
        ready = self._head_ready
        if ready is None or ready.done():
            return
        if error is None:
            ready.set_result(None)
        else:
            ready.set_exception(error)

    def _fail(self, error: LegError) -> None:
        self._error = self._error or error
        self.close()
        stale = self.uses > 1 and not self.bytes_received and time.monotonic() - self.sent_at < STALE_WITHIN_S
        self._answer_head(_Stale() if stale and isinstance(error, ConnectionLost) else error)
        self._tell_end()

    def _tell_end(self) -> None:
        if self._sink is None or not (self.is_complete or self._error):
            return
        sink, self._sink = self._sink, None
        sink.closed(None if self.is_complete else self._error)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def can_be_kept(self) -> bool:
        head = self.head
        closing = self.transport is None or self.transport.is_closing()
        return not closing and self.is_complete and head is not None and head.keep_alive

    def rest(self) -> None:
        """Forgets the request; between requests nothing is expected from the server."""
        self.resume()
        self._reset()
        self.idle_since = time.monotonic()


class _Collector:
    """Gathers a whole body."""

    def __init__(self, connection: Connection, limit_bytes: int) -> None:
        self.body: asyncio.Future[bytes] = connection.loop.create_future()
        self._connection = connection
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, data: bytes, at: int) -> int:
        return at

    def flush(self) -> None:
        return None

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


class Pool:
    """The connections to one server. `limit` counts those in use and those being opened."""

    def __init__(self, name: str, url: str, limit: int) -> None:
        parts = urlsplit(url)
        self.name = name
        self.url = url
        self.limit = limit
        self.prefix = parts.path.rstrip("/")
        self.host = parts.netloc.rpartition("@")[2].encode()
        self._address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = True if parts.scheme == "https" else None
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._opening = 0
        self._retired = False
        self._sweep: asyncio.TimerHandle | None = None
        self.last_byte_at = 0.0
        """When any answer of this server last moved, or its work began."""

    @property
    def in_use(self) -> int:
        return len(self._busy) + self._opening

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def open(
        self,
        method: str,
        request: Sendable,
        *,
        connect_s: float,
        first_byte_s: float | None,
        before_send: Callable[["Connection"], None] | None = None,
    ) -> Connection:
        """Sends a request and waits for the head of its answer.

        `before_send` is called with a connection in hand and may raise. Raises `LegError`; when cancelled, the
        connection is closed, so that the server stops working.
        """
        while True:
            connection = self._kept() or await self._connect(connect_s)
            self._busy.add(connection)
            try:
                if before_send is not None:
                    before_send(connection)
                await self._limited(connection.send(method, request), first_byte_s)
            except _Stale:
                self.take_back(connection)
                continue
            except BaseException:
                self.take_back(connection)
                raise
            return connection

    async def _limited(self, head: Awaitable[None], first_byte_s: float | None) -> None:
        if first_byte_s is None:
            await head
            return
        try:
            async with asyncio.timeout(first_byte_s):
                await head
        except TimeoutError as error:
            raise TimedOut(f"{self.name} sent no byte within the first-byte limit of {first_byte_s:g} s") from error

    def _kept(self) -> Connection | None:
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            assert connection.transport is not None
            if now - connection.idle_since < IDLE_LIMIT_S and not connection.transport.is_closing():
                return connection
            connection.close()
        return None

    async def _connect(self, connect_s: float) -> Connection:
        if self.in_use >= self.limit:
            raise ServerBusy(
                f"{self.name} has {self.limit} requests under way, its limit of connections. Try again soon, or raise "
                "the limit in the deployment's policy."
            )
        self._opening += 1
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self), *self._address, ssl=self._tls
                )
        except TimeoutError as error:
            raise TimedOut(f"{self.name} took no connection within the connect limit of {connect_s:g} s") from error
        except OSError as error:
            raise ConnectFailed(f"{self.name} takes no connection: {error}") from error
        finally:
            self._opening -= 1
        return connection

    def take_back(self, connection: Connection) -> None:
        if connection not in self._busy:
            return
        self._busy.discard(connection)
        if self._retired or not connection.can_be_kept():
            connection.close()
            return
        connection.rest()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_LIMIT_S, self._close_old)

    def forget(self, connection: Connection) -> None:
        """The connection is gone. One in use stays counted until its request gives it back."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _close_old(self) -> None:
        limit = time.monotonic() - IDLE_LIMIT_S
        for connection in [idle for idle in self._idle if idle.idle_since <= limit]:
            self._idle.remove(connection)
            connection.close()
        self._sweep = None
        if self._idle:
            wait_s = max(0.05, self._idle[0].idle_since - limit)
            self._sweep = asyncio.get_running_loop().call_later(wait_s, self._close_old)

    def retire(self) -> None:
        """Keeps no connection any more: idle ones close now, those in use when their request is over."""
        self._retired = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in self._idle:
            connection.close()
        self._idle = []
