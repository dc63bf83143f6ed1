"""A request read and answered on a client's connection, without ASGI in between."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from routing.bodies import Raw, gather
from routing.exchange import Exchange
from routing.http1 import Headers, unframed
from routing.reply import Reply, Request

if TYPE_CHECKING:
    from routing.front import Front

LAST_CHUNK: Final = b"0\r\n\r\n"
LINGER_S: Final = 5.0
"""How long a client may go on sending a body that was refused."""


class DirectReply(Reply):
    """A request being read, then its answer written to the transport."""

    __slots__ = (
        "_begun",
        "_chunked",
        "_front",
        "_is_read",
        "_parts",
        "_request",
        "_size",
        "_transport",
        "_unsent",
        "disconnected",
        "keep_alive",
        "response_complete",
    )

    def __init__(self, front: "Front", request: Request, *, keep_alive: bool) -> None:
        super().__init__()
        self.response_complete = False
        self.disconnected = False
        self.keep_alive = keep_alive
        self._front = front
        self._transport: asyncio.Transport = front.transport
        self._request = request
        self._parts: list[Raw] = []
        self._size = 0
        self._chunked = False
        self._begun = False
        self._is_read = False
        self._unsent: list[bytes] = []

    # Reading

    def add_body(self, body: bytes) -> None:
        if self._begun:
            return
        self._size += len(body)
        gather(self._parts, body, self._size)
        if self._size > self._front.router.max_body_bytes:
            self.refuse_body()

    def refuse_body(self) -> None:
        """The rest of a body that is too long is read and dropped, or the client would not see our answer; then the
        connection ends."""
        self.keep_alive = False
        self._request.too_large = True
        self._parts = []
        self.begin()

    def end_of_body(self) -> None:
        self._is_read = True
        if self.response_complete:
            self._transport.close()
        else:
            self.begin()

    def begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._request.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        Exchange(self._front.router, self._request, self).begin()

    # Answering

    def start(self, status: int, headers: Headers) -> None:
        self.started = True
        lines = [STATUS_LINE[status]]
        self._chunked = self._request.method != "HEAD" and status not in (204, 304)
        for name, value in [*self._front.server_state.default_headers, *headers]:
            if name == b"content-length":
                self._chunked = False
            lines += (name, b": ", value, b"\r\n")
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._write_soon(lines)

    def write(self, data: bytes) -> None:
        if data and self._request.method != "HEAD":
            self._write_soon((b"%x\r\n" % len(data), data, b"\r\n") if self._chunked else (data,))

    def _write_soon(self, parts: Iterable[bytes]) -> None:
        """What one turn of the event loop writes goes out in one system call: those cost more than all else here."""
        if not self._unsent:
            self._front.loop.call_soon(self.flush)
        self._unsent += parts

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if unsent and not self.disconnected:
            self._transport.write(b"".join(unsent))

    def write_frames(self, frames: bytes) -> None:
        if not self._chunked:
            self.write(unframed(frames))
        elif self._unsent:
            self._unsent.append(frames)
        elif not self.disconnected:
            self._transport.write(frames)

    def descriptor(self) -> int | None:
        if not self._chunked or self._unsent or self.paused or self.disconnected or self._transport.is_closing():
            return None
        if self._transport.get_write_buffer_size() or self._transport.get_extra_info("sslcontext"):
            return None
        descriptor: int = self._transport.get_extra_info("socket").fileno()
        return descriptor

    def finish(self) -> None:
        if self.response_complete or self.disconnected:
            return
        if self._chunked:
            self._unsent.append(LAST_CHUNK)
        self.flush()
        self.response_complete = True
        if self._request.too_large and not self._is_read:
            self._front.loop.call_later(LINGER_S, self._transport.close)
        elif not self.keep_alive:
            self._transport.close()
        self._front.answered()

    def abort(self) -> None:
        self._transport.abort()

    # The client

    def client_left(self) -> None:
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
