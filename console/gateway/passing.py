"""Client connections passed between the router's process and the pages' process, whole, as open sockets.

Who listens cannot know what a connection will ask for. So each process looks at the first line of every request on its
connections, while nothing of it was parsed, and passes on a connection whose request is for the other: the socket
itself goes over, with the bytes that were read. The client notices nothing, a stream of the router never waits for a
page, and no byte is copied twice.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
import orjson
import uvicorn

from routing.uvicorn_protocol import OldClients

LONGEST_LINE_BYTES = 64 * 1024
"""Of a request; beyond it the parser says what is wrong."""
PART_BYTES = 32 * 1024
LOOK_AGAIN_S = 0.02
MORE, LAST, TAKEN, WORD = b"+", b".", b"=", b"!"
"""The first byte of a message: a part of a connection's bytes, the last part, the receipt for it, or a word between the
processes."""


def path_of(start: bytes) -> str | None:
    """The path that a request asks for, from its first bytes; None while they do not tell.

    Empty for what is not a request: its process says so.
    """
    words = start.lstrip(b"\r\n").split(b"\r\n", 1)[0].split(b" ")
    if len(words) < 3:
        unfinished = b"\r\n" not in start.lstrip(b"\r\n") and len(start) < LONGEST_LINE_BYTES
        return None if unfinished else ""
    target = words[1]
    if not target.startswith(b"/"):
        try:
            target = httptools.parse_url(target).path or b""
        except httptools.HttpParserInvalidURLError:
            return ""
    return unquote(target.partition(b"?")[0].decode("latin-1"))


class Receiver(Protocol):
    """Who sits at an end of a channel."""

    def connection(self, client: socket.socket, first_bytes: bytes) -> None:
        """A connection came over, with what was read from it."""

    def word(self, word: dict[str, Any]) -> None:
        """The other process says something about itself."""

    def closed(self) -> None:
        """The other process is gone. Called once."""

    def returned(self, descriptor: int, first_bytes: bytes) -> None:
        """A connection that the other process never took, after `closed`. To be passed on anew, or closed."""


class Channel:
    """One end of the way between the two processes: a connected pair of `AF_UNIX`, `SOCK_SEQPACKET` sockets."""

    def __init__(self, end: socket.socket, receiver: Receiver) -> None:
        end.setblocking(False)
        self._end, self._receiver = end, receiver
        self._waiting: deque[tuple[bytes, int | None]] = deque()
        self._on_their_way: deque[tuple[int, bytes]] = deque()
        """Without a receipt: a process that dies with connections in front of it loses none of them."""
        self._coming: tuple[int, list[bytes]] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end.fileno(), self._readable)

    def pass_on(self, descriptor: int, data: bytes) -> None:
        """Takes `descriptor` over; it is closed when the other process has the connection."""
        self._on_their_way.append((descriptor, data))
        parts = [data[at : at + PART_BYTES] for at in range(0, max(1, len(data)), PART_BYTES)]
        for number, part in enumerate(parts, 1):
            kind = LAST if number == len(parts) else MORE
            self._waiting.append((kind + part, descriptor if number == 1 else None))
        self._flush()

    @property
    def on_their_way(self) -> int:
        """Connections without a receipt."""
        return len(self._on_their_way)

    def say(self, word: dict[str, Any]) -> None:
        self._waiting.append((WORD + orjson.dumps(word), None))
        self._flush()

    def close(self) -> None:
        if self._end.fileno() < 0:
            return
        self._loop.remove_reader(self._end.fileno())
        self._loop.remove_writer(self._end.fileno())
        self._end.close()
        self._waiting.clear()
        self._receiver.closed()
        returned, self._on_their_way = self._on_their_way, deque()
        for descriptor, data in returned:
            self._receiver.returned(descriptor, data)

    def _flush(self) -> None:
        while self._waiting and self._end.fileno() >= 0:
            message, descriptor = self._waiting[0]
            try:
                socket.send_fds(self._end, [message], [] if descriptor is None else [descriptor])
            except BlockingIOError:
                self._loop.add_writer(self._end.fileno(), self._flush)
                return
            except OSError:
                self.close()
                return
            self._waiting.popleft()
        if self._end.fileno() >= 0:
            self._loop.remove_writer(self._end.fileno())

    def _readable(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._end, PART_BYTES + 1, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            self.close()
        elif message[:1] == TAKEN:
            os.close(self._on_their_way.popleft()[0])
        elif message[:1] == WORD:
            self._receiver.word(orjson.loads(message[1:]))
        else:
            self._part(message, descriptors)

    def _part(self, message: bytes, descriptors: list[int]) -> None:
        if descriptors:
            self._coming = (descriptors[0], [])
        if self._coming is not None:
            self._coming[1].append(message[1:])
        if message[:1] != LAST:
            return
        coming, self._coming = self._coming, None
        self._waiting.append((TAKEN, None))
        self._flush()
        # Without its socket this process had no descriptor free. The client sees an end.
        if coming is not None:
            self._receiver.connection(socket.socket(fileno=coming[0]), b"".join(coming[1]))


class Passing(OldClients):
    """uvicorn's protocol, which keeps a connection while `is_mine` says so of each request's path."""

    is_mine: Callable[[str], bool]
    pass_on: Callable[[int, bytes], None]
    first_bytes = b""
    """What the other process read before it passed this connection on."""
    _held = b""
    _in_message = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.first_bytes:
            first, self.first_bytes = self.first_bytes, b""
            super().data_received(first)

    def on_message_begin(self) -> None:
        self._in_message = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if not self.is_refused and self._is_between_requests():
            data = self._held + data
            path = path_of(data)
            if path is None:
                self._held = data
                self._unset_keepalive_if_required()  # It is not idle: a request has begun.
                return
            self._held = b""
            if path and not self.is_mine(path):
                self._leave(data)
                return
        super().data_received(data)

    def _is_between_requests(self) -> bool:
        return not self._in_message and (self.cycle is None or self.cycle.response_complete)

    def _leave(self, data: bytes) -> None:
        """Goes over once the client has taken every byte of the answers before."""
        if self.transport.is_closing():
            return
        self.transport.pause_reading()
        self._unset_keepalive_if_required()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LOOK_AGAIN_S, self._leave, data)
            return
        descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        # Ends here without a word to the client: its connection lives on in the other descriptor.
        self.transport.abort()
        self.pass_on(descriptor, data)


def passing(kind: Callable[..., Any], is_mine: Callable[[str], bool], pass_on: Callable[[int, bytes], None]) -> Any:
    """What uvicorn calls for each connection: `kind` is a `Passing` protocol."""

    def protocol(*, first_bytes: bytes = b"", **options: Any) -> Any:
        made = kind(**options)
        made.is_mine, made.pass_on, made.first_bytes = is_mine, pass_on, first_bytes
        return made

    return protocol


def adopt(server: uvicorn.Server, client: socket.socket, first_bytes: bytes) -> None:
    """`server` serves a connection that came over the channel as if it had accepted it."""
    client.setblocking(False)
    loop = asyncio.get_running_loop()

    def protocol() -> Any:
        made: Any = server.config.http_protocol_class
        return made(
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
            _loop=loop,
            first_bytes=first_bytes,
        )

    task = loop.create_task(_connect(client, protocol))
    server.server_state.tasks.add(task)
    task.add_done_callback(server.server_state.tasks.discard)


async def _connect(client: socket.socket, protocol: Callable[[], Any]) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(protocol, client)
    except OSError:
        client.close()  # The client went on the way.
