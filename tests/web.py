"""A running web process for tests: the real application under uvicorn, in a thread, on a free port.

It shares the test's database and Valkey, so tests make rows and look at them while it runs. Use it with
`django_db(transaction=True)`.
"""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from unittest import mock

import httpx
import orjson
import uvicorn
from django.test import Client
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from console.accounts.models import User
from console.gateway import sync
from console.gateway.application import RouterApplication, is_routers
from console.gateway.serve import UVICORN
from console.gateway.services import Services
from console.live.application import PagesApplication
from console.live.collect import Collector
from console.live.serve import SOCKETS
from console.pages import PagesHandler
from console.slots import App, Message, Receive, Scope, Send
from routing.uvicorn_protocol import protocol_for
from tests.waiting import wait_until

BACKEND = "django.contrib.auth.backends.ModelBackend"
ANSWER_LIMIT_S = 60.0


class Whole:
    """Both applications in one process."""

    def __init__(self, pages: App) -> None:
        self.router, self.pages = RouterApplication(), PagesApplication(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.router(scope, lambda: self._both(receive), send)
        elif scope["type"] == "http" and is_routers(scope["path"]):
            await self.router(scope, receive, send)
        else:
            await self.pages(scope, receive, send)

    async def _both(self, receive: Receive) -> Message:
        """What the router's half is told, the pages' half does first."""
        message = await receive()
        if message["type"] == "lifespan.startup":
            self.pages.services.start()
        else:
            await self.pages.services.stop()
        return message


class RunningWeb:
    def __init__(self, pages: App | None = None) -> None:
        """`pages` instead of Django's own."""
        self.application = Whole(pages or PagesHandler())
        protocol = protocol_for(self.application.router.router)
        config = uvicorn.Config(self.application, http=protocol, timeout_graceful_shutdown=3, **SOCKETS, **UVICORN)
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.client = httpx.Client(base_url=self.url, timeout=ANSWER_LIMIT_S, limits=httpx.Limits(max_connections=None))
        """May be used by several threads at once."""
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def services(self) -> Services:
        return self.application.router.services

    @property
    def collector(self) -> Collector:
        return self.application.pages.services.collector

    def __enter__(self) -> Self:
        # It begins with the newest table, however long the database takes; with a kept one only where that is away.
        with mock.patch.object(sync, "FIRST_LOOK_LIMIT_S", ANSWER_LIMIT_S):
            self._thread.start()
            wait_until(lambda: self._server.started, "the web process listens")
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(ANSWER_LIMIT_S)
        assert not self._thread.is_alive(), "the web process did not end"

    def socket(self, name: str, user: User | None = None, origin: str = "") -> ClientConnection:
        """A socket of deployment `name`, logged in as `user`. Our own origin unless told otherwise."""
        return connect(
            f"ws://127.0.0.1:{self.port}/ws/deployments/{name}/",
            origin=Origin(origin or self.url),
            additional_headers={"Cookie": f"sessionid={session_of(user)}"} if user else {},
            max_size=None,
            compression=None,
            open_timeout=ANSWER_LIMIT_S,
        )


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user, backend=BACKEND)
    return str(client.cookies["sessionid"].value)


@contextmanager
def running_web() -> Iterator[RunningWeb]:
    with RunningWeb() as web:
        yield web


def receive(connection: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = orjson.loads(connection.recv(timeout=ANSWER_LIMIT_S))
    return message


class Watched:
    """The events that come over a connection, in order; none is passed over unseen."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._waiting: list[dict[str, Any]] = []

    def event(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The first event that has all of `wanted`; it is taken out, the others stay for later calls."""
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while time.monotonic() < deadline:
            for event in self._waiting:
                if wanted.items() <= event.items():
                    self._waiting.remove(event)
                    return event
            self._waiting += receive(self._connection).get("events", [])
        raise AssertionError(f"no event with {wanted} within {ANSWER_LIMIT_S} s")


def receive_event(connection: ClientConnection, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """For a single event: what came with it or before it is passed over."""
    return Watched(connection).event(wanted)
