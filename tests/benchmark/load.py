"""Streaming load on a router: `python -m tests.benchmark.load PORT`. Prints one JSON object, a `LoadResult`.

Closed loop: each of `--concurrency` clients sends its next request when the last has ended. All begin in the same
instant, and their answers are equally long, so requests go on coming close together; `--spread-s` lets the clients
begin one by one. With `--hold` every client sends one request and keeps its stream open, for measuring what an idle
stream costs; a line on stdin ends it.
"""

import argparse
import asyncio
import json
import sys
from time import perf_counter  # a uvloop loop's own clock ticks in milliseconds
from typing import TypedDict, cast

import uvloop

CHUNK_MARK = b"data: {"
END = b"0\r\n\r\n"


class LoadResult(TypedDict):
    """Times in milliseconds."""

    requests: int
    tokens: int
    errors: int
    requests_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float


def make_request(port: int, prompt_chars: int, key: str) -> bytes:
    message = {"role": "user", "content": "x" * prompt_chars}
    body = json.dumps({"model": "tiny", "stream": True, "max_tokens": 64, "messages": [message]}).encode()
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{authorization}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One connection that streams one answer at a time."""

    def __init__(self, load: "Load") -> None:
        self.load, self.loop = load, asyncio.get_running_loop()
        self.done: asyncio.Future[bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(False)

    async def exchange(self, request: bytes) -> bool:
        """True when a whole stream with status 200 came."""
        self.done = self.loop.create_future()
        self.sent_at, self.last_at, self.tail = perf_counter(), 0.0, b""
        self.transport.write(request)
        return await self.done

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        if not self.last_at and not self.tail and not data.startswith(b"HTTP/1.1 200"):
            self._finish(False)
            return
        if count := data.count(CHUNK_MARK):
            self.load.count(count, now, self.sent_at, self.last_at)
            self.last_at = now
        self.tail = (self.tail + data)[-len(END) :]
        if self.tail == END:
            self._finish(True)

    def _finish(self, well: bool) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(well)


class Load:
    def __init__(self, port: int, request: bytes, requests: int, concurrency: int, spread_s: float = 0.0) -> None:
        self.port, self.request, self.requests, self.concurrency = port, request, requests, concurrency
        self.spread_s = spread_s
        self.left, self.tokens, self.errors = requests, 0, 0
        self.first_s: list[float] = []
        self.gaps_s: list[float] = []

    def count(self, tokens: int, now: float, sent_at: float, last_at: float) -> None:
        self.tokens += tokens
        if last_at:
            self.gaps_s.append(now - last_at)
        else:
            self.first_s.append(now - sent_at)

    async def connect(self) -> Client:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(lambda: Client(self), "127.0.0.1", self.port))[1]

    async def _keep_asking(self, number: int) -> None:
        await asyncio.sleep(number * self.spread_s / self.concurrency)
        client: Client | None = None
        while self.left > 0:
            self.left -= 1
            client = client or await self.connect()
            if not await client.exchange(self.request):
                self.errors += 1
                client.transport.close()
                client = None
        if client is not None:
            client.transport.close()

    async def run(self) -> LoadResult:
        started_at = perf_counter()
        await asyncio.gather(*map(self._keep_asking, range(self.concurrency)))
        took_s = perf_counter() - started_at
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "errors": self.errors,
            "requests_per_s": self.requests / took_s,
            "ttft_p50_ms": percentile_ms(self.first_s, 0.50),
            "ttft_p99_ms": percentile_ms(self.first_s, 0.99),
            "gap_p50_ms": percentile_ms(self.gaps_s, 0.50),
            "gap_p99_ms": percentile_ms(self.gaps_s, 0.99),
        }

    async def hold(self) -> None:
        """Opens a stream per client, says "open" when every one has its first token, waits for a line on stdin."""
        clients = []
        for _ in range(self.concurrency):
            clients.append(await self.connect())
        exchanges = [asyncio.ensure_future(client.exchange(self.request)) for client in clients]
        while len(self.first_s) < self.concurrency:
            assert not any(exchange.done() for exchange in exchanges), "a held stream ended"
            await asyncio.sleep(0.05)
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for client in clients:
            client.transport.abort()
        await asyncio.gather(*exchanges)


def percentile_ms(values_s: list[float], share: float) -> float:
    ordered = sorted(values_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 if ordered else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--spread-s", type=float, default=0.0)
    parser.add_argument("--prompt-chars", type=int, default=2000)
    parser.add_argument("--key", default="")
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()
    request = make_request(args.port, args.prompt_chars, args.key)
    load = Load(args.port, request, args.requests, args.concurrency, args.spread_s)
    if args.hold:
        uvloop.run(load.hold())
    else:
        print(json.dumps(uvloop.run(load.run())))


if __name__ == "__main__":
    main()
