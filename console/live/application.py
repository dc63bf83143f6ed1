"""The ASGI application of the pages' process: Django's pages and API, static files, and the live sockets."""

import logging

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings

from console.database import Away, in_a_line
from console.gateway.application import is_routers, misdirected
from console.live import origin
from console.live.consumers import TRY_AGAIN_LATER
from console.live.services import LiveServices
from console.live.urls import websocket_urlpatterns
from console.slots import App, Receive, Scope, Send, Slots
from console.static import StaticFiles

log = logging.getLogger(__name__)


class PagesApplication:
    def __init__(self, pages: App) -> None:
        self.services = LiveServices()
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
        if is_routers(path):
            await misdirected(send)
        elif self._static.serves(path):
            await self._static(scope, receive, send)
        else:
            await self._pages(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not origin.allowed(scope["headers"]):
            await receive()
            await send({"type": "websocket.close", "code": 4403})
            return
        scope["collector"], scope["database"] = self.services.collector, self.services.database
        try:
            await self._sockets(scope, receive, send)
        except Away as error:
            log.warning(
                "a socket was refused, its page will try again: the database does not answer: %s", in_a_line(error)
            )
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.services.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.services.stop()
        await send({"type": "lifespan.shutdown.complete"})
