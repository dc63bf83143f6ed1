"""How the pages' process serves: it listens to nobody, and takes the connections that the web process passes on."""

import asyncio
import contextlib
import os
import socket
from typing import Any

import uvicorn

from console.gateway.application import is_routers
from console.gateway.passing import Channel, Passing, adopt, passing
from console.gateway.serve import UVICORN
from console.live.application import PagesApplication

SOCKETS_MAY_END_S = 2
SOCKETS: dict[str, Any] = {
    "ws": "websockets-sansio",
    "ws_max_size": 64 * 1024,
    # Compressing frames for every viewer would cost more than the rest of the live view.
    "ws_per_message_deflate": False,
}
TELL_EVERY_S = 1.0
BEHIND_THE_ROUTER = 10
"""Niceness: where both want the same core, a stream's token goes before a page."""


class PagesProtocol(Passing):
    """A connection that asks for the router goes back to its process."""


class PagesServer(uvicorn.Server):
    """`end` is its end of the channel. It ends when the web process does."""

    def __init__(self, application: PagesApplication, end: socket.socket) -> None:
        self._services, self._end = application.services, end
        self._channel: Channel | None = None
        super().__init__(
            uvicorn.Config(
                application,
                http=passing(PagesProtocol, lambda path: not is_routers(path), self._pass_back),
                timeout_graceful_shutdown=SOCKETS_MAY_END_S,
                **SOCKETS,
                **UVICORN,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets or [])
        self._channel = Channel(self._end, self)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._channel is not None:
            self._channel.close()

    def _pass_back(self, descriptor: int, data: bytes) -> None:
        assert self._channel is not None
        self._channel.pass_on(descriptor, data)

    def _tell(self) -> None:
        """The first word says that connections may come."""
        assert self._channel is not None
        services = self._services
        self._channel.say({"viewers": len(services.collector.viewers), "loop_restarts": services.background.restarts})
        asyncio.get_running_loop().call_later(TELL_EVERY_S, self._tell)

    # Receiver

    def connection(self, client: socket.socket, first_bytes: bytes) -> None:
        adopt(self, client, first_bytes)

    def word(self, word: dict[str, Any]) -> None:
        return None

    def closed(self) -> None:
        self.should_exit = True

    def returned(self, descriptor: int, first_bytes: bytes) -> None:
        os.close(descriptor)


def give_way() -> None:
    with contextlib.suppress(OSError):
        os.nice(BEHIND_THE_ROUTER)
