"""Lets a few page and API requests run at once, and no more.

Each running Django request is a thread with a database connection, and competes with the event loop for Python's lock.
So the number of both is bounded, and running streams stay even while pages load.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[..., Awaitable[None]]
"""Takes scope, receive and send."""

MAX_BODY_BYTES = 10 * 2**20
HELD_BACK_BYTES = 2 * 2**20
"""An answer up to this size is taken off the application at once, so that a slow reader keeps no place."""


class Slots:
    """Wraps the Django application. A slow sender takes no place before its request is complete.

    A place is a thread that stays: starting one for each request would hold up the event loop.
    """

    def __init__(self, app: App, places: int) -> None:
        self._app = app
        self._free = asyncio.LifoQueue[ThreadPoolExecutor]()
        for number in range(places):
            self._free.put_nowait(ThreadPoolExecutor(1, thread_name_prefix=f"page-{number}"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if body is None:
            return
        if len(body) > MAX_BODY_BYTES:
            await refuse_body(send)
            return
        answer = Answer(send)
        place = await self._free.get()
        try:
            async with ThreadSensitiveContext(executor=place):
                await self._app(scope, Replay(body, receive), answer)
        finally:
            self._free.put_nowait(place)
        await answer.flush()


async def read_body(receive: Receive) -> bytes | None:
    """None: the client left. Reads little more than MAX_BODY_BYTES of a longer one."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES or not message.get("more_body"):
            return b"".join(parts)


async def refuse_body(send: Send) -> None:
    text = b'{"error":{"code":"too_large","message":"The request is larger than 10 MiB."}}'
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(text)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class Replay:
    """`receive` for a request whose body has been read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class Answer:
    """`send` that keeps a short answer until the application is done with it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._kept: list[Message] = []
        self._size = 0

    async def __call__(self, message: Message) -> None:
        self._kept.append(message)
        self._size += len(message.get("body", b""))
        if self._size > HELD_BACK_BYTES:
            await self.flush()

    async def flush(self) -> None:
        kept, self._kept = self._kept, []
        for message in kept:
            await self._send(message)
