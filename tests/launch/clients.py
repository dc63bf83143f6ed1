"""Clients of the router for tests: a steady stream of requests, every answer counted."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from console.gateway import loads
from console.gateway.models import Epoch
from console.traffic.models import RequestRecord
from tests.launch.running import Installation
from tests.waiting import LIMIT_S, wait_for

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
        with httpx.Client(base_url=f"http://127.0.0.1:{running.web_port}", timeout=120, trust_env=False) as client:
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


def ask(running: Installation, model: str) -> str:
    """The id of a request that went well, once the routers serve what the rows say now."""
    wait_for_routers()
    body = {"model": model, "prompt": "word " * 60, "max_tokens": 4}
    answer = httpx.post(f"http://127.0.0.1:{running.web_port}/v1/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


def is_recorded(request_id: str) -> bool:
    return RequestRecord.objects.filter(request_id=request_id).exists()


def answers(running: Installation, path: str = "/healthz") -> bool:
    """`/healthz` is the router's own; pages come up later than it."""
    try:
        return httpx.get(f"http://127.0.0.1:{running.web_port}{path}", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


class OpenStream:
    """A long answer that is being read by a thread."""

    def __init__(self, running: Installation, model: str) -> None:
        self._lines: list[str] = []
        self._broken = False
        self._thread = threading.Thread(target=self._read, args=(running.web_port, model))
        self._thread.start()

    def _read(self, port: int, model: str) -> None:
        body = {"model": model, "prompt": "word " * 60, "max_tokens": 4000, "stream": True}
        try:
            with httpx.stream(
                "POST", f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=120, trust_env=False
            ) as answer:
                for line in answer.iter_lines():
                    self._lines.append(line)
        except httpx.HTTPError:
            self._broken = True

    def wait_for_a_token(self) -> None:
        wait_for(lambda: any(line.startswith("data: ") for line in self._lines), "the first token")

    def ended_broken(self) -> bool:
        """Waits for its end."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the stream goes on"
        return self._broken and not any("[DONE]" in line for line in self._lines)
