"""The longest silence of streams while a large body goes through the router: `python -m tests.benchmark.stalls`.

    --mib 60                  how large
    --shapes prose images     which of `SHAPES`; all without it
    --streams 4               that run meanwhile, a token every 10 ms each
    --precedence              over other work of a busy machine; needs root

The router runs alone, in front of a prefill and a decode server that keep nothing of a body. The streams are read here:
their largest gap while a body is on its way, beside that of a second without one, which shows what else goes on.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import uvloop

from console.embedded import free_port
from tests.benchmark.processes import ROOT, Running, running, take_precedence
from tests.benchmark.stall_engine import MODEL

TARGET_MS = 50.0
QUIET_S = 1.0
ANSWER_LIMIT_S = 120.0
STREAM_TOKENS = 1_000_000
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello."}]
Make = Callable[[int], bytes]
START = b'{"model":"%b","max_tokens":4,' % MODEL.encode()
SAYS = b'"messages":[{"role":"user","content":"'
PROSE = b"The pump in the second tank runs warmer than it did, and nobody knows why. "
SHORT_MESSAGE = b'{"role":"user","content":"hello there"}'
FIELD = b'"%08d":"' + b"v" * 900 + b'",'


def filled(before: bytes, unit: bytes, after: bytes) -> Make:
    """A body of the wanted size: as many of `unit` as fit."""

    def make(size: int) -> bytes:
        return START + before + unit * ((size - len(START + before + after)) // len(unit)) + after

    return make


def deep(size: int) -> bytes:
    half = (size - len(START) - 20) // 2
    return START + b'"messages":' + b"[" * half + b"]" * half + b"}"


def many_fields(unit: bytes) -> Make:
    return lambda size: START + b"".join(unit % number for number in range(size // len(unit % 0))) + b'"z":1}'


SHAPES: dict[str, tuple[str, Make]] = {
    "prose": (CHAT, filled(SAYS, PROSE, b'"}]}')),
    "short messages": (CHAT, filled(b'"messages":[', SHORT_MESSAGE + b",", SHORT_MESSAGE + b"]}")),
    "images": (CHAT, filled(SAYS + b"data:image/png;base64,", b"iVBORw0KGgoAAAANSUhEUgAAAAUA" * 40, b'"}]}')),
    "token ids": (COMPLETIONS, filled(b'"prompt":[', b"12345,", b"1]}")),
    "deep brackets": (CHAT, deep),
    "flat brackets": (CHAT, filled(b'"messages":[', b"[],", b"[]]}")),
    "objects": (CHAT, filled(b'"messages":[', b'{"a":{}},', b"{}]}")),
    "escaped quotes": (CHAT, filled(SAYS, b'\\"', b'"}]}')),
    "backslashes": (CHAT, filled(b'"messages":"', b"\\\\", b'"}')),
    "escaped letters": (CHAT, filled(SAYS, b"\\u00e9", b'"}]}')),
    "half surrogates": (CHAT, filled(b'"user":"\\ud800",' + SAYS, b"\\ud800", b'"}]}')),
    "empty strings": (CHAT, filled(b'"messages":[', b'"",', b'""]}')),
    "one number": (CHAT, filled(b'"temperature":', b"1", b"}")),
    "long numbers": (COMPLETIONS, filled(b'"prompt":[', b"1" * 300 + b",", b"1]}")),
    "spaces": (CHAT, filled(b'"messages":', b" ", b"[]}")),
    "spaces at the end": (CHAT, filled(b'"messages":[]}', b" ", b"")),
    "a long name": (CHAT, filled(b'"', b"n", b'":1}')),
    "short fields": (CHAT, many_fields(b'"%08d":1,')),
    "long fields": (CHAT, many_fields(FIELD)),
    "no end": (CHAT, filled(b'"messages":[', b'["a",', b"")),
    "no object": (CHAT, lambda size: b"[" * size),
    "usage to add": (CHAT, filled(b'"stream":true,"stream_options":{},' + SAYS, PROSE, b'"}]}')),
    "a hand-off to drop": (CHAT, filled(b'"kv_transfer_params":{},' + SAYS, PROSE, b'"}]}')),
    "a long prompt to count": (CHAT, filled(b'"max_tokens":9000,' + SAYS, PROSE, b'"}]}')),
}


class Streams:
    """Running streams, and when each got its bytes. Read on the event loop."""

    def __init__(self) -> None:
        self.arrivals: list[list[float]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, port: int, count: int) -> None:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            asked = {"model": MODEL, "messages": HELLO, "stream": True, "max_tokens": STREAM_TOKENS}
            body = json.dumps(asked).encode()
            writer.write(head(CHAT, len(body)) + body)
            await reader.readuntil(b"\r\n\r\n")
            times: list[float] = []
            self.arrivals.append(times)
            self._tasks.append(asyncio.get_running_loop().create_task(self._read(reader, writer, times)))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, times: list[float]) -> None:
        with contextlib.closing(writer):
            while await reader.read(65536):
                times.append(time.monotonic())

    def longest_gap_ms(self, since: float) -> float:
        """From then on, to this moment: of a stream that has come to a standstill as well."""
        gaps = [0.0]
        for times in self.arrivals:
            late = [moment for moment in times if moment >= since]
            gaps += [after - before for before, after in zip([since, *late], [*late, time.monotonic()], strict=True)]
        return max(gaps) * 1000

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def head(path: str, length: int) -> bytes:
    text = f"POST {path} HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    return text.encode()


def post(port: int, path: str, body: bytes) -> str:
    """Status of the answer. Blocks, in a thread of its own: sending lets go of the interpreter."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT_S) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head(path, len(body)))
            connection.sendall(body)
        return connection.recv(65536).split(b" ", 2)[1].decode()


async def measure(port: int, router: Running, shapes: list[str], size: int, count: int) -> float:
    """Longest stall of all shapes, in ms."""
    streams, worst = Streams(), 0.0
    await streams.open(port, count)
    print(f"{'shape':24}{'status':>8}{'s':>8}{'quiet ms':>10}{'stall ms':>10}{'MB after':>10}")
    for shape in shapes:
        path, make = SHAPES[shape]
        body = make(size)
        since = time.monotonic()
        await asyncio.sleep(QUIET_S)
        quiet_ms, since = streams.longest_gap_ms(since), time.monotonic()
        status = await asyncio.to_thread(post, port, path, body)
        took_s = time.monotonic() - since
        await asyncio.sleep(0.1)
        stall_ms = streams.longest_gap_ms(since)
        worst = max(worst, stall_ms)
        resident_mb = router.resident_bytes() / 1e6
        print(f"{shape:24}{status:>8}{took_s:8.2f}{quiet_ms:10.0f}{stall_ms:10.0f}{resident_mb:10.0f}", flush=True)
    await streams.close()
    return worst


@contextlib.contextmanager
def router_alone(*, precedence: bool, policy: Sequence[str] = ()) -> Iterator[tuple[int, Running]]:
    """In front of two servers that keep nothing. One worker, so that all share one event loop."""
    (ROOT / "out").mkdir(exist_ok=True)
    prefill, decode, port = free_port(), free_port(), free_port()
    engine = [sys.executable, "-m", "tests.benchmark.stall_engine"]
    argv = [sys.executable, "-m", "routing", "--workers", "1", "--port", str(port)]
    argv += ["--prefill", f"http://127.0.0.1:{prefill}", "--decode", f"http://127.0.0.1:{decode}"]
    argv += [word for setting in policy for word in ("--policy", setting)]
    with (
        (ROOT / "out" / "stalls.log").open("wb") as log,
        running([*engine, str(prefill)], log, prefill) as one,
        running([*engine, str(decode)], log, decode) as other,
        running(argv, log, port) as router,
    ):
        if precedence:
            take_precedence([os.getpid(), *(running.process.pid for running in (one, other, router))])
        time.sleep(1.0)  # Until the router has asked what the servers serve.
        yield port, router


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=60.0)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--precedence", action="store_true")
    args = parser.parse_args()
    with router_alone(precedence=args.precedence) as (port, router):
        worst_ms = uvloop.run(measure(port, router, args.shapes, int(args.mib * 2**20), args.streams))
    print(f"longest stall {worst_ms:.0f} ms, target {TARGET_MS:.0f} ms: {'met' if worst_ms <= TARGET_MS else 'MISSED'}")


if __name__ == "__main__":
    main()
