"""The ASGI application of the web process that listens: the router, and what watches over it."""

import asyncio
import logging
from typing import Any

import orjson
from django.db import Error

from console import metrics
from console.gateway.services import Services
from console.slots import Receive, Scope, Send
from routing import how_it_runs
from routing.app import is_ours

logger = logging.getLogger(__name__)
HEALTH = ("/healthz", "/health")
"""The second is where clients made for engines ask."""
OWN_PATHS = (*HEALTH, "/metrics")


def is_routers(path: str) -> bool:
    """All other paths are for the pages' process."""
    return path in OWN_PATHS or is_ours(path)


class RouterApplication:
    """`/healthz` and `/health` say that the event loop lives, and no more."""

    def __init__(self) -> None:
        self.services = Services()
        self.router = self.services.router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4404})
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if is_ours(path):
            await self.router(scope, receive, send)
        elif path in HEALTH:
            await _answer(send, 200, {"status": "ok"})
        elif path == "/metrics":
            await self._metrics(scope, send)
        else:
            await misdirected(send)

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
        logger.info("The router runs %s.", how_it_runs())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.services.stop()
        await send({"type": "lifespan.shutdown.complete"})


async def misdirected(send: Send) -> None:
    """A connection goes over between requests. One that was sent before the answer to the last cannot."""
    message = "Do not pipeline pages and requests to the router: wait for the answer before, or use two connections."
    await _refuse(send, 421, "misdirected", message)


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    await _answer(send, status, {"error": {"code": code, "message": message}})


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    await _send(send, status, b"application/json", orjson.dumps(content))


async def _send(send: Send, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
