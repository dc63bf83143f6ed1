"""`manage.py web` and `manage.py router` as processes of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from tests.own import held_port
from tests.simulator.harness import NAME, SimulatedServer
from tests.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plain() -> Iterator[SimulatedServer]:
    with SimulatedServer("plain", env={"SIMULATOR_SPEED": "1"}) as engine:
        yield engine


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=LIMIT_S).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def command(port: int, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A running `manage.py` command that answers on `/healthz`."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", *arguments, "--port", str(port)], cwd=ROOT, env={**os.environ, **environment}
    )
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), "it answers")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data folder of a console with an empty database."""
    folder = str(tmp_path_factory.mktemp("console"))
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"],
        cwd=ROOT,
        env={**os.environ, "DATA_DIR": folder},
        check=True,
    )
    return folder


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_web_process_ends_when_asked_to(valkey: "redis.Redis", console: str, stop: signal.Signals) -> None:
    with held_port() as port, command(port, "web", DATA_DIR=console) as web:
        web.send_signal(stop)
        web.wait(timeout=LIMIT_S)


def test_the_web_process_answers_without_database_and_valkey(tmp_path: Path) -> None:
    with held_port() as port, command(port, "web", DATA_DIR=str(tmp_path), REDIS_URL="redis://127.0.0.1:1/0"):
        assert answers(f"http://127.0.0.1:{port}/healthz")


def test_the_router_runs_alone(plain: SimulatedServer, tmp_path: Path) -> None:
    """With nothing but the address of a server: no database, no broker."""
    alone = {"DATA_DIR": str(tmp_path), "REDIS_URL": "redis://127.0.0.1:1/0"}
    with held_port() as port, command(port, "router", "--plain", plain.url, **alone):
        body = {"model": NAME, "prompt": "hello", "max_tokens": 3}
        url = f"http://127.0.0.1:{port}/v1/completions"
        wait_until(
            lambda: httpx.post(url, json=body, timeout=LIMIT_S).status_code == 200,
            "the router has learned the model's name",
        )
    assert not list(tmp_path.glob("*.sqlite3"))


def test_the_router_says_what_it_needs() -> None:
    ended = subprocess.run(
        [sys.executable, "manage.py", "router"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "name at least one server" in ended.stderr


def test_help_tells_the_routers_own_options() -> None:
    asked = subprocess.run(
        [sys.executable, "manage.py", "help", "router"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("usage: manage.py router ")
    assert "--prefill" in asked.stdout


def test_running_streams_do_not_hold_up_the_end_for_long(
    plain: SimulatedServer, valkey: "redis.Redis", tmp_path: Path
) -> None:
    alone = ("--plain", plain.url, "--model", NAME, "--shutdown-timeout", "1")
    with held_port() as port, command(port, "router", *alone) as router:
        body = {"model": NAME, "prompt": "hello", "max_tokens": 30_000, "stream": True, "ignore_eos": True}
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=LIMIT_S) as answer:
            began = time.monotonic()
            router.terminate()
            with pytest.raises(httpx.TransportError):
                answer.read()
        router.wait(timeout=LIMIT_S)
    assert time.monotonic() - began < 25  # Streams have 30 s unless told otherwise, and this one would take minutes.


def test_the_router_alone_loads_no_django() -> None:
    program = (
        "import runpy, sys; sys.argv = ['manage.py', 'router']\n"
        "try:\n    runpy.run_path('manage.py', run_name='__main__')\n"
        "except SystemExit:\n    print('django' in sys.modules, 'routing' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "True"]
