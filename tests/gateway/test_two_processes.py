"""`manage.py web` and the pages' process beside it, from outside: one address, whoever serves."""

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import product
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from console.gateway import pages_process
from console.live.serve import BEHIND_THE_ROUTER
from tests.gateway.test_commands import command, console
from tests.own import held_port
from tests.routing.test_tuning import SHORT_NS, told
from tests.routing.test_upgrades import OFFER
from tests.running import is_running
from tests.waiting import LIMIT_S, until, wait_until

__all__ = ["console"]


IDLE_CONNECTIONS_ARE_KEPT_S = 3
ENDS_WITHIN_S = 5.0
"""After SIGTERM (`console/gateway/serve.py`)."""


class Web:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"

    def pages(self) -> psutil.Process | None:
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "pages" in child.cmdline():
                    return child
        return None

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=LIMIT_S, headers={"accept-encoding": "identity"})

    def page(self) -> httpx.Response:
        """Of the pages' process, which may be starting. On a slow machine that takes longer than a request is kept."""
        give_up_at = time.monotonic() + LIMIT_S
        while True:
            asked_at = time.monotonic()
            answer = self.get("/login/")
            if answer.status_code != 503 or time.monotonic() > give_up_at:
                return answer
            assert time.monotonic() - asked_at >= pages_process.STARTS_WITHIN_S, "it was kept so long"


@contextmanager
def running_web(console: str) -> Iterator[Web]:
    environment = {"DATA_DIR": console, "METRICS_OPEN": "1", "KEEP_ALIVE_S": str(IDLE_CONNECTIONS_ARE_KEPT_S)}
    with held_port() as port, command(port, "web", **environment) as process:
        yield Web(process, port)


@pytest.fixture(scope="module")
def web(console: str) -> Iterator[Web]:
    """One for all tests that leave it as it is."""
    with running_web(console) as web:
        assert web.page().status_code == 200
        yield web


@pytest.fixture
def own_web(console: str) -> Iterator[Web]:
    """For a test that needs it fresh, or ends a process of it."""
    with running_web(console) as web:
        yield web


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


def test_a_first_request_waits_for_pages_that_are_starting(own_web: Web) -> None:
    """`/healthz` answers before the pages' process has loaded."""
    assert own_web.page().status_code == 200


def test_a_token_goes_before_a_page(web: Web) -> None:
    """Neither waits for the end of a long time slice, and the pages' process is nicer."""
    pages = web.pages()
    assert pages is not None
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert told(web.process.pid) == (own, SHORT_NS)
    assert told(pages.pid) == (own + BEHIND_THE_ROUTER, SHORT_NS)


def test_a_request_line_may_come_byte_by_byte(web: Web) -> None:
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /login/ HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n":
            client.sendall(bytes([byte]))
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_next_request_may_come_slower_than_an_idle_connection_is_kept(web: Web) -> None:
    """Its first line decides which process has the connection; a connection on which it has begun is not idle."""
    turns = list(product(("/login/", "/healthz"), repeat=2))
    answers = await asyncio.gather(*(ask_and_ask_slowly(web, *turn) for turn in turns))
    assert [first.split(b" ", 2)[:2] for first, _ in answers] == [[b"HTTP/1.1", b"200"]] * 4
    assert [second.split(b" ", 2)[:2] for _, second in answers] == [[b"HTTP/1.1", b"200"]] * 4


async def ask_and_ask_slowly(web: Web, first: str, second: str) -> tuple[bytes, bytes]:
    """The head of the first answer and the second answer, on one connection. The second request's line comes slowly."""
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    async with asyncio.timeout(LIMIT_S):
        writer.write(request(first))
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        assert found, head
        await reader.readexactly(int(found[1]))
        start, version, rest = request(second, more=LAST).partition(b" HTTP")
        for byte in start:  # Up to here its path might go on.
            writer.write(bytes([byte]))
            await asyncio.sleep((IDLE_CONNECTIONS_ARE_KEPT_S + 1) / len(start))
        writer.write(version + rest)
        answer = await reader.read()
    writer.close()
    return head, answer


def test_a_large_form_arrives_whole(web: Web) -> None:
    """Its first bytes go over with the connection, the rest comes by the connection itself."""
    form = b"username=" + b"x" * 2_000_000
    answer = httpx.post(f"{web.url}/login/", content=form, timeout=LIMIT_S)
    assert answer.status_code == 403, "Django read the form and missed its CSRF token"


def test_a_form_that_offers_http_2_arrives_with_its_fields(web: Web) -> None:
    with httpx.Client(base_url=web.url, timeout=LIMIT_S) as client:
        client.get("/login/")
        form = {"csrfmiddlewaretoken": client.cookies["csrftoken"], "username": "nobody", "password": "nothing"}
        assert client.post("/login/", data=form, headers=OFFER).status_code == 200, "the form again, with what is wrong"


def raw(web: Web, *parts: bytes) -> bytes:
    """What comes back on one connection until the server ends it."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=LIMIT_S) as client:
        for part in parts:
            client.sendall(part)
        return b"".join(iter(lambda: client.recv(65536), b""))


def request(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}\r\n".encode()


LAST = "connection: close\r\n"


@pytest.mark.parametrize(("first", "second"), [("/login/", "/healthz"), ("/healthz", "/login/")])
def test_pipelining_over_both_processes_is_refused_in_words(web: Web, first: str, second: str) -> None:
    answer = raw(web, request(first) + request(second, more=LAST))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 421" in answer
    assert b"Do not pipeline" in answer


def test_an_answer_to_head_has_no_body(web: Web) -> None:
    answer = raw(web, request("/v1/models", "HEAD", LAST))
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "path", ["/login/", "/static/css/app.css", "/api/servers", "/healthz", "/metrics", "/v1/models"]
)
def test_an_http_1_0_client_gets_no_chunks_from_either_process(web: Web, path: str) -> None:
    head, _, body = raw(web, f"GET {path} HTTP/1.0\r\n\r\n".encode()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body


def test_no_byte_of_an_answer_is_lost_when_a_slow_reader_asks_the_other_process_next(web: Web) -> None:
    style = "/static/vendor/tabler/css/tabler.min.css"
    length = len(web.get(style).content)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
    client.settimeout(LIMIT_S)
    with client:
        client.connect(("127.0.0.1", web.port))
        client.sendall(request(style) * 4)
        first = client.recv(100)  # All four are answered, or on their way; most of their bytes are not read.
        client.sendall(request("/healthz", more=LAST))
        answers = first + b"".join(iter(lambda: client.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200") + answers.count(b"HTTP/1.1 421") == 5
    bodies = [part.partition(b"\r\n\r\n")[2] for part in answers.split(b"HTTP/1.1 ")[1:5]]
    assert [len(body) for body in bodies] == [length] * 4


async def test_pages_that_hang_are_killed_and_what_they_did_not_take_is_served(
    valkey: "redis.Redis",
    console: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATA_DIR", console)
    monkeypatch.setattr(pages_process, "STARTS_WITHIN_S", LIMIT_S)
    pages = pages_process.PagesProcess()
    following = asyncio.create_task(pages.follow())
    try:
        await ready(pages)
        assert pages._process is not None
        pages._process.send_signal(signal.SIGSTOP)
        near, far = socket.socketpair()
        near.setblocking(False)
        pages.pass_on(far.detach(), request("/login/", more=LAST))
        with monkeypatch.context() as impatient:  # only now: a start may take its time
            impatient.setattr(pages_process, "SILENT_LIMIT_S", 1.0)
            await until(lambda: pages.restarts == 1)
        with near:
            answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(near, 100), LIMIT_S)
        assert answer.startswith(b"HTTP/1.1 200")
    finally:
        await pages.stop()
        await following


async def ready(pages: pages_process.PagesProcess) -> None:
    await until(lambda: pages.is_ready)


async def test_pages_may_take_longer_to_start_than_to_say_the_next_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_process, "start", start_a_sleeper)
    monkeypatch.setattr(pages_process, "SILENT_LIMIT_S", 0.05)
    pages = pages_process.PagesProcess()
    following = asyncio.create_task(pages.follow())
    await until(lambda: pages._process is not None)
    await asyncio.sleep(0.5)
    assert pages.restarts == 0
    monkeypatch.setattr(pages_process, "SILENT_AT_FIRST_LIMIT_S", 0.05)
    await until(lambda: pages.restarts == 1)
    await pages.stop()
    await asyncio.wait_for(following, LIMIT_S)


async def test_pages_that_are_about_to_start_again_do_not_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_process, "start", start_a_sleeper)
    pages = pages_process.PagesProcess()
    following = asyncio.create_task(pages.follow())
    await until(lambda: pages._process is not None)
    assert pages._process is not None
    pages._process.kill()
    await until(lambda: pages.restarts == 1)
    await pages.stop()
    await asyncio.wait_for(following, LIMIT_S)
    assert pages._process.returncode == -signal.SIGKILL, "there was no other"


async def test_pages_that_are_just_being_started_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def start_slowly(end: socket.socket) -> asyncio.subprocess.Process:
        begun.set()
        await go_on.wait()
        return await start_a_sleeper(end)

    monkeypatch.setattr(pages_process, "start", start_slowly)
    pages = pages_process.PagesProcess()
    following = asyncio.create_task(pages.follow())
    await begun.wait()
    await pages.stop()
    go_on.set()
    await asyncio.wait_for(following, LIMIT_S)
    assert pages._process is not None
    assert pages._process.returncode == -signal.SIGTERM


async def start_a_sleeper(end: socket.socket) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec("sleep", "600")


def test_killed_pages_come_back_and_the_router_answers_meanwhile(own_web: Web) -> None:
    assert own_web.page().status_code == 200
    killed = own_web.pages()
    assert killed is not None
    killed.kill()
    assert own_web.get("/healthz").status_code == 200
    assert own_web.page().status_code == 200
    now = own_web.pages()
    assert now is not None
    assert now.pid != killed.pid
    assert "switchyard_web_pages_restarts_total 1.0" in own_web.get("/metrics").text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_pages_end_with_the_process_that_listens(own_web: Web, how: signal.Signals) -> None:
    assert own_web.page().status_code == 200
    pages = own_web.pages()
    assert pages is not None
    own_web.process.send_signal(how)
    own_web.process.wait(timeout=LIMIT_S)
    wait_until(lambda: gone(pages), "no pages are left")


def test_it_ends_in_time_though_the_pages_hang(own_web: Web) -> None:
    """What the pages' process had in hand or was to get ends as well: nobody waits for it."""
    with (
        closing(own_web.connection()) as idle,
        socket.create_connection(("127.0.0.1", own_web.port), timeout=LIMIT_S) as waiting,
    ):
        assert own_web.page().status_code == get(idle, "/login/") == 200
        pages = own_web.pages()
        assert pages is not None
        pages.suspend()
        waiting.sendall(request("/login/"))
        assert own_web.get("/healthz").status_code == 200, "by now it has read the other as well"
        own_web.process.terminate()
        own_web.process.wait(timeout=8 * ENDS_WITHIN_S)  # A busy machine is slower.
        assert gone(pages)
        assert waiting.recv(100).startswith(b"HTTP/1.1 503")
        assert idle.sock.recv(100) == b""


def gone(process: psutil.Process) -> bool:
    return not is_running(process.pid)


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
