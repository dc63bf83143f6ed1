"""A connection that carries one JSON value per line, in both directions."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson


class JsonLines(asyncio.Protocol):
    """Subclasses take what comes. A line that is no JSON ends the connection."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def take(self, message: Any) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            try:
                message = orjson.loads(line)
            except ValueError:
                self.close()
                return
            self.take(message)

    def send(self, message: Any) -> None:
        """Nothing once the connection is lost."""
        if self._transport is not None:
            self._transport.write(orjson.dumps(message) + b"\n")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
