"""What `make bench` compares: our router alone and inside the console, vLLM's own router, and a proxy on httpx."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from console.embedded import EmbeddedValkey, free_port
from tests.benchmark.processes import AFTER_ALL, ROOT, Running, running, set_niceness

BENCH_BIN = ROOT / "out" / "bench-venv" / "bin"
MANAGE = [sys.executable, str(ROOT / "manage.py")]
IDLE_PAGES = 5
BROWSERS = 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where a contestant listens and what stands behind it."""

    port: int
    prefill: str
    decode: str
    log: IO[bytes]


@dataclass(frozen=True, slots=True)
class Contestant:
    start: Callable[[Place], AbstractContextManager[Running]]
    has_viewers: bool = False
    """What those take from the machine while it runs is not the router's."""


def router_alone(place: Place) -> AbstractContextManager[Running]:
    argv = ["router", "--prefill", place.prefill, "--decode", place.decode, "--port", str(place.port)]
    return running([*MANAGE, *argv], place.log, place.port)


def vllm_router(place: Place) -> AbstractContextManager[Running]:
    argv = [str(BENCH_BIN / "vllm-router"), "--host", "127.0.0.1", "--port", str(place.port)]
    argv += ["--vllm-pd-disaggregation", "--prefill", place.prefill, "--decode", place.decode]
    argv += ["--policy", "round_robin", "--prometheus-port", str(free_port()), "--log-level", "error"]
    return running(argv, place.log, place.port)


def httpx_proxy(place: Place) -> AbstractContextManager[Running]:
    argv = [str(BENCH_BIN / "python"), "-m", "tests.benchmark.httpx_proxy"]
    return running([*argv, str(place.port), place.prefill, place.decode], place.log, place.port)


@contextlib.contextmanager
def console(place: Place, viewers: tuple[str, int] = ("idle_pages", IDLE_PAGES)) -> Iterator[Running]:
    """The console's web process with its pages' process, its database and broker real, with a few yard pages open and
    nobody touching them, or other `viewers`: a module of this package, and how many."""
    with tempfile.TemporaryDirectory(prefix="switchyard-bench-") as folder:
        valkey = EmbeddedValkey(Path(folder) / "valkey", persistent=False)
        valkey.start()
        env = {**os.environ, "DATA_DIR": folder, "REDIS_URL": valkey.url, "LOG_LEVEL": "WARNING", "DATABASE_URL": ""}
        try:
            rows = [sys.executable, "-m", "tests.benchmark.console_rows", place.prefill, place.decode]
            cookie = subprocess.run(rows, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True, text=True).stdout
            web = [*MANAGE, "web", "--host", "127.0.0.1", "--port", str(place.port)]
            module, count = viewers
            look = [sys.executable, "-m", f"tests.benchmark.{module}", str(place.port), str(count), cookie]
            with running(web, place.log, place.port, env) as process, watched(look, place.log):
                yield process
        finally:
            valkey.stop()


@contextlib.contextmanager
def watched(argv: list[str], log: IO[bytes]) -> Iterator[None]:
    """Viewers look for the whole block, or the figures would be of something else.

    They stand for other people's machines, so they get what nobody else wants of this one: a router must not be told
    to be slow because the browsers beside it compute.
    """
    viewers = Running(argv, log)
    set_niceness(viewers.process.pid, AFTER_ALL)
    try:
        yield
        if viewers.process.poll() is not None:
            raise SystemExit("the viewers ended before the load did; see out/bench.log")
    finally:
        viewers.stop()


def console_with_browsers(place: Place) -> AbstractContextManager[Running]:
    return console(place, ("busy_pages", BROWSERS))


@contextlib.contextmanager
def vllm_router_beside_browsers(place: Place) -> Iterator[Running]:
    """What the same browsers take from a router that has nothing to do with their pages: the machine's share."""
    with console_with_browsers(replace(place, port=free_port())), vllm_router(place) as process:
        yield process


CONTESTANTS = {
    "vllm-router": Contestant(vllm_router),
    "switchyard router": Contestant(router_alone),
    "switchyard console": Contestant(console, has_viewers=True),
    "with ten browsers": Contestant(console_with_browsers, has_viewers=True),
    "vllm-router, browsers": Contestant(vllm_router_beside_browsers, has_viewers=True),
    "httpx proxy": Contestant(httpx_proxy),
}
"""The first is the yardstick."""
