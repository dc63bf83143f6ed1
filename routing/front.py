"""A client's connection: requests of the router's paths are read and answered here, all others left to uvicorn.

Also left to it, from their first byte on and for the rest of their connection: what is no plain HTTP/1.1 (an older
version, an offer to change the protocol, a body in chunks, `Expect: 100-continue`, anything malformed), and a request
that was sent before the answer to the one before it was complete.
"""

import asyncio
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import httptools

from routing.direct import DirectReply
from routing.http1 import Headers
from routing.paths import is_ours
from routing.reply import Request

if TYPE_CHECKING:
    from routing.app import Router

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_READS: Final = 8
"""A head that is longer, or comes in more pieces, is uvicorn's, which reads it on its way."""
LOOK_EVERY_S = 0.5


class Front:
    """One connection. An `asyncio.Protocol` by its methods (see `routing.client.Connection`)."""

    __slots__ = (
        "_connections",
        "_head",
        "_idle_since",
        "_idle_timer",
        "_keep_alive_s",
        "_leave_to",
        "_left",
        "_pending",
        "_reads",
        "_reply",
        "loop",
        "router",
        "server_state",
        "transport",
    )

    def __init__(
        self,
        router: "Router",
        leave_to: Callable[[], Any],
        server_state: Any,
        loop: asyncio.AbstractEventLoop,
        keep_alive_s: float,
        first_bytes: bytes = b"",
    ) -> None:
        """`leave_to` makes uvicorn's protocol, `server_state` is uvicorn's. `first_bytes`: what was read already.
        `keep_alive_s`: how long an idle connection stays open."""
        self.router = router
        self.server_state = server_state
        self.loop = loop
        self._leave_to = leave_to
        self._connections: set[Any] = server_state.connections
        self.transport: Any = None
        self._reply: DirectReply | None = None
        """To the request that is being read or answered."""
        self._keep_alive_s = keep_alive_s
        self._left = 0
        """Bytes of its body that are to come."""
        self._reads = 0
        self._head = first_bytes
        """The beginning of a head."""
        self._pending = b""
        """What came before the answer under way was complete."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    # As an asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._connections.add(self)
        if self._head:
            first, self._head = self._head, b""
            self._begin(first)

    def data_received(self, data: bytes) -> None:
        if self._reply is None:
            self._begin(self._head + data if self._head else data)
        elif self._left:
            self._read_body(self._reply, data, 0)
        else:
            self._wait_with(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._stop_timer()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.client_left()

    def pause_writing(self) -> None:
        if self._reply is not None:
            self._reply.set_paused(True)

    def resume_writing(self) -> None:
        if self._reply is not None:
            self._reply.set_paused(False)

    # For uvicorn

    def shutdown(self) -> None:
        """The server ends: so does the connection, with the answer under way."""
        if self._reply is None:
            self.transport.close()
        else:
            self._reply.keep_alive = False

    # Reading

    def _begin(self, data: bytes) -> None:
        """`data` begins with a request."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._reads += 1
            if len(data) > MAX_HEAD_BYTES or self._reads > MAX_READS or not _begins_well(data):
                self._leave(data)
            else:
                self._head = data
            return
        self._head, self._reads = b"", 0
        head = _RequestHead()
        parser = httptools.HttpRequestParser(head)
        try:
            parser.feed_data(data[:end])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._leave(data)
            return
        target, _, query = head.url.partition(b"?")
        path = target.decode("latin-1")
        is_plain = head.is_plain and parser.get_http_version() == "1.1" and not parser.should_upgrade()
        if not is_plain or "%" in path or not is_ours(path):
            self._leave(data)
            return
        request = Request(parser.get_method().decode("ascii"), path, query, head.headers, b"")
        reply = self._reply = DirectReply(self, request, keep_alive=parser.should_keep_alive())
        self._left = head.length
        if head.length > self.router.max_body_bytes:
            reply.refuse_body()
        self._read_body(reply, data, end)

    def _read_body(self, reply: DirectReply, data: bytes, at: int) -> None:
        end = min(at + self._left, len(data))
        self._left -= end - at
        if end > at:
            reply.add_body(data[at:end])
        if not self._left:
            reply.end_of_body()
            if end < len(data):
                self._wait_with(data[end:])

    def _wait_with(self, data: bytes) -> None:
        """Reads no more until the answer under way is complete."""
        if self.transport.is_closing():
            return
        self._pending += data
        self.transport.pause_reading()
        self._look_for_the_client()

    def _look_for_the_client(self) -> None:
        """While nothing is read, nothing would tell that it has left."""
        if not self._pending or self.transport.is_closing():
            return
        if has_left(self.transport.get_extra_info("socket").fileno()):
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_EVERY_S, self._look_for_the_client)

    def _leave(self, data: bytes) -> None:
        """The rest of the connection is uvicorn's, from `data` on."""
        self._head = b""
        self._stop_timer()
        self._connections.discard(self)
        uvicorns = self._leave_to()
        uvicorns.connection_made(self.transport)
        self.transport.set_protocol(uvicorns)
        uvicorns.data_received(data)

    # Answered

    def answered(self) -> None:
        """The whole answer was written."""
        self.server_state.total_requests += 1
        if self._left:
            return  # A body that was refused is read to its end, then the connection ends.
        self._reply = None
        if self.transport.is_closing():
            return
        if self._pending:
            pending, self._pending = self._pending, b""
            self.transport.resume_reading()
            self._leave(pending)
            return
        self._idle_since = time.monotonic()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self._keep_alive_s, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """One timer per connection, set anew only when it rings."""
        self._idle_timer = None
        if self._reply is not None or self._head:
            return
        left_s = self._idle_since + self._keep_alive_s - time.monotonic()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._close_if_idle)
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _begins_well(data: bytes) -> bool:
    """More may follow that makes it a request."""
    try:
        httptools.HttpRequestParser(_RequestHead()).feed_data(data)
    except httptools.HttpParserError:
        return False
    return True


class _RequestHead:
    """What the parser tells of a head."""

    __slots__ = ("headers", "is_plain", "length", "url")

    def __init__(self) -> None:
        self.url = b""
        self.headers: Headers = []
        self.length = 0
        """Of the body, in bytes."""
        self.is_plain = True
        """The body follows at once, as it is."""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name == b"content-length":
            self.length = int(value)
        elif name == b"transfer-encoding" or (name == b"expect" and value.lower() == b"100-continue"):
            self.is_plain = False


def has_left(descriptor: int) -> bool:
    """The other side has closed the connection, though there may be bytes to read before its end."""
    asked = select.poll()
    asked.register(descriptor, select.POLLRDHUP)
    return bool(asked.poll(0))
