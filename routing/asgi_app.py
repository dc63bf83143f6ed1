"""The router as an ASGI application."""

import asyncio
from typing import TYPE_CHECKING

from routing.asgi import AsgiReply, Receive, Scope, Send
from routing.exchange import Exchange
from routing.http1 import Headers
from routing.reply import Request

if TYPE_CHECKING:
    from routing.app import Router


async def serve(router: "Router", scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _live(router, receive, send)
    elif scope["type"] == "http":
        await _answer(router, scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1000})


async def _live(router: "Router", receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await router.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _answer(router: "Router", scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    is_too_large = _declared_bytes(headers) > router.max_body_bytes
    body = b"" if is_too_large else await _read_body(receive, router.max_body_bytes)
    if body is None:
        return
    is_too_large = is_too_large or len(body) > router.max_body_bytes
    reply = AsgiReply(receive, send)
    request = Request(scope["method"], scope["path"], scope.get("query_string", b""), headers, body, is_too_large)
    exchange = Exchange(router, request, reply)
    over = asyncio.Event()
    exchange.on_over = over.set
    exchange.begin()
    try:
        await reply.pump()
    finally:
        exchange.leave()
        await over.wait()


def _declared_bytes(headers: Headers) -> int:
    """Of the body; 0 where its length is not told."""
    return next((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), 0)


async def _read_body(receive: Receive, limit_bytes: int) -> bytes | None:
    """None: the client left before its request was complete. Reads little more than the limit of a longer one."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        parts.append(part)
        if size > limit_bytes or not message.get("more_body"):
            return b"".join(parts)
