"""An answer given as an ASGI application, and the types that such an application speaks in."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from routing.http1 import Headers
from routing.reply import Reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HIGH_WATER_BYTES: Final = 64 * 1024


class AsgiReply(Reply):
    """Writes without waiting into a queue that `pump` sends; listens for the client's leaving meanwhile."""

    def __init__(self, receive: Receive, send: Send) -> None:
        super().__init__()
        self._receive = receive
        self._send = send
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._start: Message | None = None
        self._finished = False
        self._aborted = False
        self._left = False
        self._wake = asyncio.Event()

    def start(self, status: int, headers: Headers) -> None:
        self.started = True
        self._start = {"type": "http.response.start", "status": status, "headers": headers}
        self._wake.set()

    def write(self, data: bytes) -> None:
        self._queue.append(data)
        self._queued_bytes += len(data)
        self._wake.set()
        if self._queued_bytes > HIGH_WATER_BYTES:
            self.set_paused(True)

    def finish(self) -> None:
        self._finished = True
        self._wake.set()

    def abort(self) -> None:
        self._aborted = True
        self._wake.set()

    async def pump(self) -> None:
        """Sends until the answer is complete or the client leaves."""
        listener = asyncio.get_running_loop().create_task(self._listen())
        try:
            while not self._left:
                await self._wake.wait()
                self._wake.clear()
                if await self._flush():
                    return
                if self._aborted:
                    raise ConnectionAbortedError("the answer broke off: the server closes the connection, visibly")
        finally:
            listener.cancel()

    async def _flush(self) -> bool:
        start, self._start = self._start, None
        if start is not None:
            await self._send(start)
        while self._queue or self._finished:
            data, finished = b"".join(self._queue), self._finished
            self._queue.clear()
            self._queued_bytes = 0
            await self._send({"type": "http.response.body", "body": data, "more_body": not finished})
            self.set_paused(False)
            if finished:
                return True
        return False

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._wake.set()
        if not self._finished and self.on_disconnect is not None:
            self.on_disconnect()
