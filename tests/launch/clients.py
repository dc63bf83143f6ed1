"""Clients of the router for tests: a steady stream of requests, every answer counted."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from console.gateway import loads
from console.gateway.models import Epoch
from tests.launch.running import Installation, wait_for

CLIENTS = 2


@contextmanager
def traffic(running: Installation, model: str) -> Iterator["Counter[int]"]:
    """Streams requests, a few at a time, until the block ends. Counts status codes; 0 is a stream that broke.

    Begins when the routers serve what the rows say now; they hear of a change a moment after it was made.
    """
    wait_for_routers()
    statuses: Counter[int] = Counter()
    ending = threading.Event()
    body = {"model": model, "prompt": "word " * 60, "max_tokens": 8, "stream": True}

    def send() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{running.web_port}", timeout=30, trust_env=False) as client:
            while not ending.is_set():
                try:
                    answer = client.post("/v1/completions", json=body)
                except httpx.HTTPError:
                    statuses[0] += 1
                    continue
                whole = answer.status_code == 200 and '"finish_reason":"length"' in answer.text.replace(" ", "")
                statuses[answer.status_code if whole or answer.status_code != 200 else 0] += 1

    threads = [threading.Thread(target=send) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def wait_for_routers() -> None:
    epoch = Epoch.current()

    def have_heard() -> bool:
        routers = loads.routers()
        return bool(routers) and all(router.epoch >= epoch for router in routers)

    wait_for(have_heard, "the routers to hear of the newest change")


def wait_for_more(statuses: "Counter[int]") -> None:
    served = statuses[200]
    wait_for(lambda: statuses[200] >= served + 5, "traffic to flow")
