"""The router inside uvicorn without ASGI in between: its paths are taken from the parser, all others left to uvicorn.

Use it as `uvicorn.Config(app, http=protocol_for(router))`. Requests that are pipelined, or HTTP/1.0, or that expect
`100 Continue`, go uvicorn's way to the ASGI application, where `Router.__call__` serves them with the same result. An
HTTP/1.0 client knows no chunks: the end of its connection is the end of a stream.
"""

import select
from functools import partial
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from routing.app import Router
from routing.direct import DirectReply
from routing.reader import RequestReader
from routing.upgrades import IgnoresUpgrades, lenient_parser

LOOK_EVERY_S: Final = 0.5
KEEP_ALIVE_S: Final = 75
"""How long an idle connection of a client stays open: longer than clients keep theirs, so that none sends a request
into a connection that is just being closed."""


def has_left(descriptor: int) -> bool:
    """The other side has closed the connection, though there may be bytes to read before its end."""
    asked = select.poll()
    asked.register(descriptor, select.POLLRDHUP)
    return bool(asked.poll(0))


def protocol_for(router: Router) -> type[HttpToolsProtocol]:
    """What uvicorn calls for each connection, as it would its protocol's class."""
    return cast("type[HttpToolsProtocol]", partial(RouterProtocol, router))


class PlainCycle(RequestResponseCycle):
    """Answers HTTP/1.0, which knows no chunks: what has no length of its own ends with its connection."""

    _ends_with_connection = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._ends_with_connection = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if self._ends_with_connection:
                self.chunked_encoding = False  # Left open, uvicorn would choose chunks.
        elif self._ends_with_connection:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class OldClients(IgnoresUpgrades):
    """uvicorn's protocol, which answers requests of HTTP/1.0 without chunks."""

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0" and type(self.cycle) is RequestResponseCycle:
            self.cycle.__class__ = PlainCycle  # Before its task takes the first step.


class RouterProtocol(OldClients):
    """One client connection."""

    def __init__(self, router: Router, *args: Any, **options: Any) -> None:
        self.router = router
        self._direct: DirectReply | None = None
        """The reply under way, when the request is ours."""
        self._is_looking = False
        super().__init__(*args, **options)
        self.parser = self._new_parser()

    def _new_parser(self) -> httptools.HttpRequestParser:
        self.reader = RequestReader(self)
        return lenient_parser(self.reader)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.pipeline and not self._is_looking:
            self._is_looking = True
            self._look_for_the_client()

    def _look_for_the_client(self) -> None:
        """While a request waits behind another nothing is read, and so nothing would tell that the client has left."""
        if self.transport.is_closing() or not self.pipeline:
            self._is_looking = False
        elif has_left(self.transport.get_extra_info("socket").fileno()):
            self.transport.abort()
        else:
            self.loop.call_later(LOOK_EVERY_S, self._look_for_the_client)

    def is_answering(self) -> bool:
        return self._direct.is_begun if self._direct is not None else super().is_answering()

    # For the reader

    def may_answer_directly(self) -> bool:
        """The request whose head was read can be answered past uvicorn."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        return self.parser.get_http_version() == "1.1" and not self.parser.should_upgrade()

    def answer_directly(self, reply: DirectReply) -> None:
        self._direct = reply
        self.cycle = reply  # type: ignore[assignment]  # It has what uvicorn looks at.

    def direct_done(self) -> None:
        self._direct = None
        self.on_response_complete()

    # asyncio.Protocol

    def connection_lost(self, exc: Exception | None) -> None:
        direct, self._direct = self._direct, None
        super().connection_lost(exc)
        if direct is not None:
            direct.client_left()
        # Both know this protocol: without the cycles it is freed at once, and with it a body that was half sent.
        self.cycle = None  # type: ignore[assignment]
        del self.reader

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._direct is not None:
            self._direct.set_paused(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._direct is not None:
            self._direct.set_paused(False)
