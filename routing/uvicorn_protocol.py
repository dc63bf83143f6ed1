"""The router inside uvicorn without ASGI in between: its paths are taken from the parser, all others left to uvicorn.

Use it as `uvicorn.Config(app, http=protocol_for(router))`. Requests that are pipelined, or HTTP/1.0, or that expect
`100 Continue`, go uvicorn's way to the ASGI application, where `Router.__call__` serves them with the same result. An
HTTP/1.0 client knows no chunks: the end of its connection is the end of a stream.
"""

from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from routing.app import Router
from routing.direct import DirectReply
from routing.http1 import Headers
from routing.paths import is_ours
from routing.reply import Request
from routing.upgrades import IgnoresUpgrades


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
        super().__init__(*args, **options)
        self.router = router
        self._direct: DirectReply | None = None
        """The reply under way, when the request is ours."""
        self._reading: DirectReply | None = None
        """The same while its request is read; a pipelined request that is read meanwhile is uvicorn's."""

    def on_headers_complete(self) -> None:
        if not self._is_direct():
            self._reading = None
            super().on_headers_complete()
            return
        path, _, query = self.url.partition(b"?")
        method = self.parser.get_method().decode("ascii")
        request = Request(method, path.decode("latin-1"), query, self.headers, b"")
        reply = DirectReply(self, request, keep_alive=self.parser.should_keep_alive())
        self._direct = self._reading = reply
        del self.scope, self.headers  # Made anew for the next request; a waiting stream need not hold them.
        self.cycle = reply  # type: ignore[assignment]  # It has what uvicorn looks at.
        if _declared_length(request.headers) > self.router.max_body_bytes:
            reply.refuse_body()

    def _is_direct(self) -> bool:
        if self.expect_100_continue or self.parser.get_http_version() != "1.1" or self.parser.should_upgrade():
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        path = self.url.partition(b"?")[0]
        return path.startswith(b"/") and b"%" not in path and is_ours(path.decode("latin-1"))

    def on_body(self, body: bytes) -> None:
        if self._reading is None:
            super().on_body(body)
        else:
            self._reading.add_body(body)

    def on_message_complete(self) -> None:
        if self._reading is None:
            super().on_message_complete()
        else:
            self._reading.end_of_body()

    def direct_done(self) -> None:
        self._direct = None
        self.on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        direct, self._direct = self._direct, None
        super().connection_lost(exc)
        if direct is not None:
            direct.client_left()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._direct is not None:
            self._direct.set_paused(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._direct is not None:
            self._direct.set_paused(False)


def _declared_length(headers: Headers) -> int:
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return 0
