"""Open yard pages that nobody touches: sockets that read whatever comes.

python -m tests.benchmark.idle_pages PORT COUNT COOKIE
"""

import asyncio
import sys

import websockets

DEPLOYMENT = "tiny"


async def look(port: str, cookie: str) -> None:
    url = f"ws://127.0.0.1:{port}/ws/deployments/{DEPLOYMENT}/"
    headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{port}"}
    async with websockets.connect(url, additional_headers=headers, max_size=None) as socket:
        async for _ in socket:
            pass


async def look_at_all(port: str, count: str, cookie: str) -> None:
    await asyncio.gather(*(look(port, cookie) for _ in range(int(count))))


if __name__ == "__main__":
    asyncio.run(look_at_all(*sys.argv[1:]))
