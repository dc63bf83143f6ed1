"""A model server that keeps nothing of a body but its first bytes: `python -m tests.benchmark.stall_engine PORT`.

So that a stall measured behind it is none of its own. Streams a token every 10 ms, as many as `max_tokens` says;
whatever is not streamed gets a prefill server's answer.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

from tests.benchmark.mock_engine import (
    CONTENT_LENGTH,
    DONE,
    EMPTY,
    HEAD,
    LAST_TOKEN,
    MODEL,
    MODELS,
    PREFILLED,
    STREAMED,
    TOKEN,
)

KEPT_BYTES = 4096
GAP_S = 0.01
_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.begun = b""
        self.streaming: asyncio.Task[None] | None = None
        self.left = -1
        """Bytes of the body that are still to come; -1 before its head is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.streaming is not None:
            self.streaming.cancel()

    def data_received(self, data: bytes) -> None:
        if self.left < 0:
            self.begun += data
            head, blank, rest = self.begun.partition(b"\r\n\r\n")
            if not blank:
                return
            length = CONTENT_LENGTH.search(head)
            self.left = (int(length[1]) if length else 0) - len(rest)
        else:
            self.left -= len(data)
            if len(self.begun) < KEPT_BYTES:
                self.begun += data[:KEPT_BYTES]
        if self.left <= 0:
            begun, self.begun, self.left = self.begun, b"", -1
            self.answer(begun)

    def answer(self, begun: bytes) -> None:
        if begun.startswith(b"GET"):
            self.transport.write(MODELS if begun.startswith(b"GET /v1/models") else EMPTY)
        elif STREAMED.search(begun[:KEPT_BYTES]):
            tokens = _TOKENS.search(begun[:KEPT_BYTES])
            self.streaming = asyncio.get_running_loop().create_task(self.stream(int(tokens[1]) if tokens else 16))
        else:
            self.transport.write(PREFILLED)

    async def stream(self, tokens: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        self.transport.write(HEAD)
        for number in range(tokens):
            self.transport.write(TOKEN if number < tokens - 1 else LAST_TOKEN)
            due += GAP_S
            await asyncio.sleep(max(0.0, due - loop.time()))
        self.transport.write(DONE)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))

__all__ = ["MODEL", "Connection"]
