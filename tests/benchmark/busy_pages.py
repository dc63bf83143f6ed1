"""Browsers that load pages without a pause: `python -m tests.benchmark.busy_pages PORT COUNT COOKIE`."""

import asyncio
import itertools
import sys

import httpx

PAGES = ("/", "/deployments/tiny/", "/requests/", "/hosts/", "/audit/")
PAGE_LIMIT_S = 60.0


async def browse(port: str, cookie: str, first: int) -> None:
    """Each browser begins with another page. Ends when a page is not answered well: a benchmark must not hide that."""
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"Cookie": cookie}, timeout=PAGE_LIMIT_S
    ) as client:
        for number in itertools.count(first):
            (await client.get(PAGES[number % len(PAGES)])).raise_for_status()


async def browse_all(port: str, count: str, cookie: str) -> None:
    await asyncio.gather(*(browse(port, cookie, number) for number in range(int(count))))


if __name__ == "__main__":
    asyncio.run(browse_all(*sys.argv[1:]))
