"""The router inside uvicorn without ASGI in between: requests of its paths are `Front`'s, all others uvicorn's.

Use it as `uvicorn.Config(app, http=protocol_for(router))`. What `Front` leaves to uvicorn goes to the ASGI application,
where `Router.__call__` serves it with the same result. An HTTP/1.0 client knows no chunks: the end of its connection is
the end of a stream.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from routing.app import Router
from routing.front import LOOK_EVERY_S, Front, has_left
from routing.upgrades import IgnoresUpgrades

KEEP_ALIVE_S: Final = 75
"""How long an idle connection of a client stays open: longer than clients keep theirs, so that none sends a request
into a connection that is just being closed."""


def protocol_for(router: Router, uvicorns: Callable[..., Any] | None = None) -> type[asyncio.Protocol]:
    """What uvicorn calls for each connection, as it would its protocol's class. `uvicorns`: what it is to be for all
    that is not the router's."""
    return cast("type[asyncio.Protocol]", partial(_front, router, uvicorns or OldClients))


def _front(router: Router, uvicorns: Callable[..., Any], *, first_bytes: bytes = b"", **options: Any) -> Front:
    keep_alive_s = options["config"].timeout_keep_alive
    leave_to = partial(uvicorns, **options)
    return Front(router, leave_to, options["server_state"], router.turnstile.loop, keep_alive_s, first_bytes)


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
    """uvicorn's protocol, which answers requests of HTTP/1.0 without chunks, and hears of a client that leaves while a
    request waits behind another."""

    _is_looking = False

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0" and type(self.cycle) is RequestResponseCycle:
            self.cycle.__class__ = PlainCycle  # Before its task takes the first step.
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

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # Without this it is freed only by the collector.
