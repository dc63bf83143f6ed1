"""`manage.py web` and the pages' process beside it, from outside: one address, whoever serves."""

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from console.embedded import free_port
from tests.gateway.test_commands import command, console
from tests.waiting import wait_until

__all__ = ["console"]


class Web:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"

    def pages(self) -> psutil.Process | None:
        for child in psutil.Process(self.process.pid).children():
            if child.is_running() and "pages" in child.cmdline():
                return child
        return None

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)


@pytest.fixture
def web(valkey: "redis.Redis", console: str) -> Iterator[Web]:
    port = free_port()
    with command(port, "web", DATA_DIR=console, METRICS_OPEN="1") as process:
        yield Web(process, port)


def get(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_one_connection_may_ask_for_pages_and_for_the_router_by_turns(web: Web) -> None:
    with closing(web.connection()) as connection:
        connection.connect()
        used = connection.sock
        seen = [get(connection, path) for path in ("/login/", "/v1/unknown", "/login/", "/healthz", "/login/")]
        assert seen == [200, 404, 200, 200, 200]
        assert connection.sock is used, "the connection was the same all along"


def test_a_first_request_waits_for_pages_that_are_starting(web: Web) -> None:
    """`/healthz` answers before the pages' process has loaded."""
    assert httpx.get(f"{web.url}/login/", timeout=60).status_code == 200


def test_a_request_line_may_come_byte_by_byte(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /login/ HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n":
            client.sendall(bytes([byte]))
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_large_form_arrives_whole(web: Web) -> None:
    """Its first bytes go over with the connection, the rest comes by the connection itself."""
    form = b"username=" + b"x" * 2_000_000
    answer = httpx.post(f"{web.url}/login/", content=form, timeout=60)
    assert answer.status_code == 403, "Django read the form and missed its CSRF token"


def test_killed_pages_come_back_and_the_router_answers_meanwhile(web: Web) -> None:
    assert httpx.get(f"{web.url}/login/", timeout=60).status_code == 200
    killed = web.pages()
    assert killed is not None
    killed.kill()
    assert httpx.get(f"{web.url}/healthz", timeout=60).status_code == 200
    assert httpx.get(f"{web.url}/login/", timeout=60).status_code == 200
    now = web.pages()
    assert now is not None
    assert now.pid != killed.pid
    assert "switchyard_web_pages_restarts_total 1.0" in httpx.get(f"{web.url}/metrics", timeout=60).text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_pages_end_with_the_process_that_listens(web: Web, how: signal.Signals) -> None:
    assert httpx.get(f"{web.url}/login/", timeout=60).status_code == 200
    pages = web.pages()
    assert pages is not None
    web.process.send_signal(how)
    web.process.wait(timeout=30)
    wait_until(lambda: not pages.is_running() or pages.status() == psutil.STATUS_ZOMBIE, "no pages are left")


def test_the_pages_command_says_who_starts_it() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "pages", "--channel", "99"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "manage.py web" in done.stderr
