"""Thousands of clients at once on a router whose servers take few: `python -m tests.benchmark.overload`.

    --clients 5000            that connect in the same moment, each with one request
    --limit 100               requests that each of the two servers may be given
    --streams 20              that run already, a token every 10 ms each
    --precedence              over other work of a busy machine; needs root

Tells how the clients were answered and how soon, how long `/healthz` and the running streams were kept waiting, and
what memory the router took.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter

import psutil
import uvloop

from tests.benchmark.processes import ROOT, Running, allow_many_connections
from tests.benchmark.stall_engine import MODEL
from tests.benchmark.stalls import CHAT, QUIET_S, Streams, head, router_alone

ANSWER_LIMIT_S = 60.0
HEALTH_EVERY_S = 0.05
PROMPT = "The pump in the second tank runs warmer than it did. " * 40
BODY = b'{"model":"%b","max_tokens":20,"stream":true,"messages":[{"role":"user","content":"%b"}]}' % (
    MODEL.encode(),
    PROMPT.encode(),
)
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: router\r\nconnection: close\r\n\r\n"
LAST_BYTES = (b"0\r\n\r\n", b"ok\n")
"""Of a stream, and of `/healthz`."""
Asked = tuple[str, float]
"""Status and seconds to the answer's head."""


async def ask(port: int, request: bytes) -> Asked:
    began = time.monotonic()
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            top = await reader.readuntil(b"\r\n\r\n")
            took_s = time.monotonic() - began
            status = top.split(b" ", 2)[1].decode()
            if status == "503" and b"retry-after" not in top.lower():
                status = "503 without Retry-After"
            if status == "200":
                await reader.readuntil(LAST_BYTES[request is HEALTH])
            writer.close()
            return status, took_s
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        return type(error).__name__, time.monotonic() - began


async def watch_health(port: int, waits_s: list[float]) -> None:
    while True:
        status, took_s = await ask(port, HEALTH)
        waits_s.append(took_s if status == "200" else float("inf"))
        await asyncio.sleep(HEALTH_EVERY_S)


async def watch_memory(router: Running, sizes: list[int]) -> None:
    process = psutil.Process(router.process.pid)
    while True:
        sizes.append(process.memory_info().rss)
        await asyncio.sleep(HEALTH_EVERY_S)


async def crowd(port: int, clients: int) -> list[Asked]:
    return await asyncio.gather(*(ask(port, head(CHAT, len(BODY)) + BODY) for _ in range(clients)))


async def answers_of_a_crowd(port: int, clients: int) -> list[Asked]:
    """In a process of its own: what it has to do must not show in what is measured here."""
    argv = [sys.executable, "-m", "tests.benchmark.overload", "--clients", str(clients), "--crowd-at", str(port)]
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    answers: list[Asked] = json.loads(printed)
    return answers


async def measure(port: int, router: Running, clients: int, count: int) -> None:
    streams, waits_s, sizes = Streams(), list[float](), list[int]()
    await streams.open(port, count)
    since = time.monotonic()
    await asyncio.sleep(QUIET_S)
    quiet_ms, base, since = streams.longest_gap_ms(since), router.resident_bytes(), time.monotonic()
    watching = [asyncio.create_task(watch_health(port, waits_s)), asyncio.create_task(watch_memory(router, sizes))]
    answers = await answers_of_a_crowd(port, clients)
    took_s, stall_ms = time.monotonic() - since, streams.longest_gap_ms(since)
    for task in watching:
        task.cancel()
    after = (await ask(port, head(CHAT, len(BODY)) + BODY))[0]
    await streams.close()
    report(answers, took_s)
    print(f"/healthz: longest {max(waits_s) * 1000:.0f} ms of {len(waits_s)}; afterwards a request gets {after}")
    print(f"longest gap in {count} running streams: {stall_ms:.0f} ms, before {quiet_ms:.0f} ms")
    print(f"memory: {base / 1e6:.0f} MB before, at most {max(sizes) / 1e6:.0f} MB")


def report(answers: list[Asked], took_s: float) -> None:
    print(f"{len(answers)} clients, all answered within {took_s:.1f} s")
    for status, number in Counter(status for status, _ in answers).most_common():
        times = sorted(1000 * seconds for answered, seconds in answers if answered == status)
        print(f"{status:>28}: {number:6}   median {statistics.median(times):6.0f} ms, longest {times[-1]:6.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--policy", action="append", default=[], metavar="NAME=VALUE", help="of the deployment")
    parser.add_argument("--crowd-at", type=int, default=0, metavar="PORT", help="be the clients, of the router there")
    parser.add_argument("--precedence", action="store_true")
    args = parser.parse_args()
    allow_many_connections()
    if args.crowd_at:
        print(json.dumps(uvloop.run(crowd(args.crowd_at, args.clients))))
        return
    policy = [f"max_connections_per_server={args.limit}", *args.policy]
    with router_alone(precedence=args.precedence, policy=policy) as (port, router):
        uvloop.run(measure(port, router, args.clients, args.streams))


if __name__ == "__main__":
    main()
