"""HTTP/1.1 on a socket: requests in, replies out, with the handles that faults need (reset, silence)."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
import orjson

from .faults import Faults

Headers = list[tuple[str, str]]
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
JSON = "application/json"


@lru_cache(maxsize=1)
def _date_line_of(second: int) -> bytes:
    return time.strftime("date: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(second)).encode()


def _date_line() -> bytes:
    return _date_line_of(int(time.time()))


class HttpRequest:
    __slots__ = ("body", "headers", "keep_alive", "method", "path", "peer", "query", "received")

    def __init__(self, peer: str) -> None:
        self.method = ""
        self.path = ""
        self.query = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.peer = peer
        self.keep_alive = True
        self.received = time.monotonic()


class Reply:
    """The answer to one request. `on_close` is called when the client leaves before it is complete."""

    def __init__(self, connection: Connection, request: HttpRequest) -> None:
        self.request = request
        self.connection = connection
        self.status = 0
        self.done = False
        self.on_close: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.extra_headers: Headers = []
        self.cors: Headers = []
        """Who may read the answer."""
        self.told_of_load: Headers = []
        """For a whole answer that is no error."""
        self.faults = Faults()
        self._chunked = False

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def paused(self) -> bool:
        """The client reads too slowly: hold back."""
        return self.connection.paused

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """`length` None: the body comes in chunks."""
        self._send_head(status, headers, length)

    def write(self, data: bytes) -> None:
        # An empty chunk would end the body.
        if data:
            self._send(data)

    def finish(self) -> None:
        self._end()

    def full(self, status: int, body: bytes, content_type: str = JSON, headers: Headers | None = None) -> None:
        kind = [("content-type", content_type)] if content_type else []
        self.start(status, kind + (headers or []), len(body))
        if self.request.method != "HEAD":
            self.write(body)
        self.finish()

    def json(self, status: int, value: Any, headers: Headers | None = None) -> None:
        self.full(status, orjson.dumps(value), headers=headers)

    def _send_head(self, status: int, headers: Headers, length: int | None) -> None:
        self.status = status
        self._chunked = length is None
        framing = ("transfer-encoding", "chunked") if length is None else ("content-length", str(length))
        lines = "".join(f"{name}: {value}\r\n" for name, value in [*headers, *self.cors, *self.extra_headers, framing])
        close = "" if self.request.keep_alive else "connection: close\r\n"
        line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n".encode()
        head = line + _date_line() + b"server: uvicorn\r\n" + f"{lines}{close}\r\n".encode("latin-1", "replace")
        self.connection.write(head)

    def _send(self, data: bytes) -> None:
        self.connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _end(self) -> None:
        if self.done:
            return
        self.done = True
        if self._chunked:
            self.connection.write(b"0\r\n\r\n")
        self.connection.reply_done(self)

    def break_off(self) -> None:
        """The connection ends in the middle of the answer."""
        self.done = True
        self.connection.break_off(self)

    def closed_by_client(self) -> None:
        if not self.done:
            self.done = True
            if self.on_close is not None:
                self.on_close()
            self.connection.abandoned(self)

    def resumed(self) -> None:
        if self.on_resume is not None:
            self.on_resume()


class Application(Protocol):
    """What a connection asks of the application behind it."""

    @property
    def keep_alive_s(self) -> float: ...
    def reply_for(self, connection: Connection, request: HttpRequest) -> Reply: ...
    def handle(self, request: HttpRequest, reply: Reply) -> None: ...
    def stops_reading(self, request: HttpRequest) -> bool: ...
    def answered(self, reply: Reply) -> None: ...
    def abandoned(self, reply: Reply) -> None: ...
    def opened(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, application: Application) -> None:
        # process
        self._application = application
        self._loop = asyncio.get_running_loop()
        # connection
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._peer = ""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiting: deque[HttpRequest] = deque()
        self.closed = False
        self.paused = False
        # request
        self._request: HttpRequest | None = None
        self._parts: list[bytes] = []
        self._url = b""
        self._reply: Reply | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if peer else ""
        self._application.opened(self)

    def data_received(self, data: bytes) -> None:
        self._stop_watching()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.close()
        except httptools.HttpParserError:
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n")
            self.write(b"content-length: 30\r\n\r\nInvalid HTTP request received.")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._stop_watching()
        self._application.lost(self)
        if self._reply is not None:
            self._reply.closed_by_client()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._reply is not None:
            self._reply.resumed()

    # --- httptools

    def on_message_begin(self) -> None:
        self._request = HttpRequest(self._peer)
        self._parts = []
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._request is not None
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        request = self._request
        assert request is not None
        assert self._transport is not None
        request.method = self._parser.get_method().decode("latin-1")
        request.keep_alive = self._parser.should_keep_alive()
        path, _, request.query = self._url.decode("latin-1").partition("?")
        request.path = unquote(path)
        if self._application.stops_reading(request):
            self._transport.pause_reading()
        if request.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        request = self._request
        assert request is not None
        request.body = b"".join(self._parts)
        self._parts = []
        if self._reply is not None:
            self._waiting.append(request)
            return
        self._serve(request)

    # --- replies

    def _serve(self, request: HttpRequest) -> None:
        self._reply = self._application.reply_for(self, request)
        self._application.handle(request, self._reply)

    def reply_done(self, reply: Reply) -> None:
        self._application.answered(reply)
        self._reply = None
        if self.closed:
            return
        if not reply.request.keep_alive:
            self.close()
        elif self._waiting:
            self._serve(self._waiting.popleft())
        else:
            self._watch_idle()

    def break_off(self, reply: Reply, reset: bool = False) -> None:
        self._application.answered(reply)
        self._reply = None
        if reset:
            self.reset()
        else:
            self.close()

    def abandoned(self, reply: Reply) -> None:
        """The client left before the reply was complete."""
        self._application.abandoned(reply)

    @property
    def is_idle(self) -> bool:
        return self._reply is None

    def write(self, data: bytes) -> None:
        if not self.closed and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """The client sees `connection reset by peer`, not an orderly end."""
        if self._transport is None or self.closed:
            return
        held = self._transport.get_extra_info("socket")
        copy = socket.socket(fileno=os.dup(held.fileno()))
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        copy.close()
        self._transport.abort()

    def _watch_idle(self) -> None:
        self._stop_watching()
        self._idle_timer = self._loop.call_later(self._application.keep_alive_s, self.close)

    def _stop_watching(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
