"""One ASGI application: the router, the sockets, and Django's pages and API, in one process."""

import asyncio
import logging
from typing import Any

import orjson
from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings
from django.db import Error

from console import metrics
from console.database import Away
from console.gateway.services import Services
from console.live import origin
from console.live.consumers import TRY_AGAIN_LATER
from console.live.urls import websocket_urlpatterns
from console.slots import App, Receive, Scope, Send, Slots
from console.static import StaticFiles
from routing.app import is_ours

log = logging.getLogger(__name__)


class Application:
    """Sends each request to the part that serves it. `/healthz` says that the event loop lives, and no more."""

    def __init__(self, pages: App) -> None:
        self.services = Services()
        self.router = self.services.router
        self._pages = Slots(pages, settings.PAGE_SLOTS)
        self._static = StaticFiles()
        self._sockets = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if is_ours(path):
            await self.router(scope, receive, send)
        elif path == "/healthz":
            await _answer(send, 200, {"status": "ok"})
        elif path == "/metrics":
            await self._metrics(scope, send)
        elif self._static.serves(path):
            await self._static(scope, receive, send)
        else:
            await self._pages(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not origin.allowed(scope["headers"]):
            await receive()
            await send({"type": "websocket.close", "code": 4403})
            return
        scope["collector"], scope["database"] = self.services.collector, self.services.live_database
        try:
            await self._sockets(scope, receive, send)
        except Away as error:
            log.warning("a socket was refused, its page will try again: the database does not answer: %s", error)
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})

    async def _metrics(self, scope: Scope, send: Send) -> None:
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        try:
            allowed = await self.services.token_database.run(metrics.may_read, authorization)
        except Error:
            await _refuse(send, 503, "unavailable", "The database does not answer, so the token cannot be checked.")
            return
        if not allowed:
            await _refuse(send, 401, "unauthorized", "Send an API token: Authorization: Bearer …")
            return
        text = await asyncio.to_thread(self.router.metrics.render)
        await _send(send, 200, b"text/plain; version=0.0.4; charset=utf-8", text)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.services.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.services.stop()
        await send({"type": "lifespan.shutdown.complete"})


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    await _answer(send, status, {"error": {"code": code, "message": message}})


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    await _send(send, status, b"application/json", orjson.dumps(content))


async def _send(send: Send, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
