"""Static files without Django's handler: WhiteNoise decides what to answer, bytes are read once and kept.

Through the middleware every file would cost a thread and a pass through Django, several per page.
"""

import asyncio
from http import HTTPStatus
from typing import Any

from django.conf import settings
from whitenoise.middleware import WhiteNoiseMiddleware

from console.slots import Receive, Scope, Send

KEPT_BYTES = 64 * 2**20
CONDITIONS = {b"if-none-match": "HTTP_IF_NONE_MATCH", b"if-modified-since": "HTTP_IF_MODIFIED_SINCE"}


class StaticFiles:
    def __init__(self) -> None:
        self._whitenoise = WhiteNoiseMiddleware()
        self._prefix = settings.STATIC_URL
        self._kept: dict[str, bytes] = {}
        self._kept_bytes = 0

    def serves(self, path: str) -> bool:
        return path.startswith(self._prefix)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wants = {CONDITIONS[name]: value.decode("latin-1") for name, value in scope["headers"] if name in CONDITIONS}
        found = await self._find(scope["path"])
        if found is None:
            await self._answer(
                send, HTTPStatus.NOT_FOUND, [("Content-Type", "text/plain")], b"There is no such file.\n"
            )
            return
        response = found.get_response(scope["method"] if scope["method"] != "GET" else "HEAD", wants)
        body = b""
        if scope["method"] == "GET" and response.status == HTTPStatus.OK:
            body = await self._read(found.get_path_and_headers(wants)[0])
        await self._answer(send, response.status, response.headers, body)

    async def _find(self, path: str) -> Any:
        if settings.WHITENOISE_AUTOREFRESH:
            return await asyncio.to_thread(self._whitenoise.find_file, path)
        return self._whitenoise.files.get(path)

    async def _read(self, path: str) -> bytes:
        if (kept := self._kept.get(path)) is not None:
            return kept
        body = await asyncio.to_thread(_bytes_of, path)
        if not settings.WHITENOISE_AUTOREFRESH and self._kept_bytes + len(body) <= KEPT_BYTES:
            self._kept[path] = body
            self._kept_bytes += len(body)
        return body

    async def _answer(self, send: Send, status: HTTPStatus, headers: list[tuple[str, str]], body: bytes) -> None:
        encoded = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        if not any(name == b"content-length" for name, _ in encoded) and status != HTTPStatus.NOT_MODIFIED:
            encoded.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": int(status), "headers": encoded})
        await send({"type": "http.response.body", "body": body})


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
