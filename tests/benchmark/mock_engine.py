"""A model server that costs next to nothing: `python -m tests.benchmark.mock_engine PORT`.

A streamed request gets `--tokens` chunks, one every `--gap-ms`, or all at once when that is 0. Any other POST gets the
one-token answer of a prefill server, with hand-off parameters. GET /v1/models names the model `tiny`; every other GET
is answered with `{}`.
"""

import argparse
import asyncio
import json
import re
from collections.abc import Callable
from typing import cast

import uvloop

MODEL = "tiny"
CONTENT_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"transfer-encoding:\s*chunked", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"
STREAMED = re.compile(rb'"stream":\s*true')
ASKS_USAGE = re.compile(rb'"include_usage":\s*true')
HANDOFF = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "7e5a3c1e-0000-4000-8000-000000000001",
    "remote_request_id": "chatcmpl-1",
    "remote_block_ids": [[1, 2, 3, 4, 5]],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 547,
}


def chunk_frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def compact(payload: object) -> bytes:
    """As vLLM writes JSON."""
    return json.dumps(payload, separators=(",", ":")).encode()


def json_answer(payload: object) -> bytes:
    body = compact(payload)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def delta(content: str, finish: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish, "token_ids": None}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return chunk_frame(b"data: %b\n\n" % compact(event))


HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"server: uvicorn\r\n\r\n"
)
USAGE = chunk_frame(
    b"data: %b\n\n"
    % compact(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": MODEL,
            "choices": [],
            "usage": {"prompt_tokens": 547, "total_tokens": 611, "completion_tokens": 64},
        }
    )
)
TOKEN, LAST_TOKEN = delta(" word", None), delta(" word", "length")
DONE = chunk_frame(b"data: [DONE]\n\n") + LAST_CHUNK
EMPTY = json_answer({})
MODELS = json_answer({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 8192}]})
PREFILLED = json_answer(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 547, "total_tokens": 548, "completion_tokens": 1},
        "kv_transfer_params": HANDOFF,
    }
)


class Connection(asyncio.Protocol):
    """One client connection; requests on it are answered one after the other."""

    def __init__(self, tokens: int, gap_s: float) -> None:
        self.tokens, self.gap_s, self.received = tokens, gap_s, b""
        self.streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.streaming is not None:
            self.streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (request := self._take_request()) is not None:
            self._answer(*request)

    def _take_request(self) -> tuple[bytes, bytes] | None:
        """Head and body of the next complete request, taken off what was received."""
        head, blank, rest = self.received.partition(b"\r\n\r\n")
        if not blank:
            return None
        length = 0
        if match := CONTENT_LENGTH.search(head):
            length = int(match[1])
        elif CHUNKED.search(head):
            length = rest.find(LAST_CHUNK) + len(LAST_CHUNK)
            if length < len(LAST_CHUNK):
                return None
        if len(rest) < length:
            return None
        self.received = rest[length:]
        return head, rest[:length]

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self.transport.write(MODELS if head.startswith(b"GET /v1/models") else EMPTY)
        elif STREAMED.search(body):
            self.streaming = asyncio.get_running_loop().create_task(self._stream(ASKS_USAGE.search(body) is not None))
        else:
            self.transport.write(PREFILLED)

    async def _stream(self, asks_usage: bool) -> None:
        loop = asyncio.get_running_loop()
        self.transport.write(HEAD)
        due = loop.time()
        for number in range(1, self.tokens + 1):
            if number == self.tokens:
                break
            self.transport.write(TOKEN)
            if self.gap_s:
                due += self.gap_s
                await asyncio.sleep(max(0.0, due - loop.time()))
        # As vLLM: nothing is waited for between the last token and the end.
        self.transport.write(LAST_TOKEN + (USAGE if asks_usage else b"") + DONE)


async def serve(port: int, make: Callable[[], Connection]) -> None:
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--gap-ms", type=float, default=10.0)
    args = parser.parse_args()
    uvloop.run(serve(args.port, lambda: Connection(args.tokens, args.gap_ms / 1e3)))


if __name__ == "__main__":
    main()
