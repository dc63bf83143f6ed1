"""Connections pass between the router's process and the pages' process without the client noticing."""

import asyncio
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from console.gateway.application import is_routers
from console.gateway.passing import LONGEST_LINE_BYTES, Channel, path_of
from tests.waiting import LIMIT_S, until


@pytest.mark.parametrize(
    ("start", "path"),
    [
        (b"GET / HTTP/1.1\r\n", "/"),
        (b"GET /login/?next=/ HTTP/1.1\r\nhost: x\r\n", "/login/"),
        (b"\r\nPOST /v1/chat/completions HTTP/1.1\r\n", "/v1/chat/completions"),
        (b"POST /v1%2Fmodels HTTP/1.1\r\n", "/v1/models"),
        (b"GET http://host:8000/v1/models?a=1 HTTP/1.1\r\n", "/v1/models"),
        (b"GET /half", None),
        (b"G", None),
        (b"", None),
        (b"GET /no-version-yet HTTP", "/no-version-yet"),
        (b"NONSENSE\r\n\r\n", ""),
        (b"GET : HTTP/1.1\r\n", ""),
        (b"x" * LONGEST_LINE_BYTES, ""),
    ],
)
def test_the_path_is_read_from_a_requests_first_bytes(start: bytes, path: str | None) -> None:
    assert path_of(start) == path


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/nothing", "/tokenize", "/tokenize/", "/healthz", "/health", "/metrics"]
)
def test_the_routers_paths_stay_with_the_router(path: str) -> None:
    assert is_routers(path)


@pytest.mark.parametrize("path", ["/", "/login/", "/api/servers", "/v1", "/static/x.css", "/ws/deployments/a/"])
def test_all_others_are_for_the_pages(path: str) -> None:
    assert not is_routers(path)


class Desk:
    """Who sits at an end in these tests."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[tuple[socket.socket, bytes]] = asyncio.Queue()
        self.words: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.back: list[tuple[int, bytes]] = []

    def connection(self, client: socket.socket, first_bytes: bytes) -> None:
        self.came.put_nowait((client, first_bytes))

    def word(self, word: dict[str, Any]) -> None:
        self.words.put_nowait(word)

    def closed(self) -> None:
        self.gone.set()

    def returned(self, descriptor: int, first_bytes: bytes) -> None:
        self.back.append((descriptor, first_bytes))


class Ends:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.desk, self.other_desk = Desk(), Desk()
        self.channel, self.other = Channel(ours, self.desk), Channel(theirs, self.other_desk)


@pytest.fixture
async def ends() -> Any:
    made = Ends()
    yield made
    made.channel.close()
    made.other.close()


@pytest.fixture
def client() -> Iterator[tuple[socket.socket, int]]:
    """A client's socket, and the descriptor of the server's side of its connection."""
    near, far = socket.socketpair()
    with near:
        yield near, far.detach()


async def test_a_connection_goes_over_with_what_was_read(ends: Ends, client: tuple[socket.socket, int]) -> None:
    near, descriptor = client
    ends.channel.pass_on(descriptor, b"GET / HTTP/1.1\r\n")
    taken, first_bytes = await asyncio.wait_for(ends.other_desk.came.get(), LIMIT_S)
    with taken:
        assert first_bytes == b"GET / HTTP/1.1\r\n"
        taken.sendall(b"answer")
        assert near.recv(100) == b"answer"
    await until(lambda: not is_open(descriptor), "the descriptor is closed")


async def test_many_bytes_arrive_whole_and_in_order(ends: Ends) -> None:
    sent = []
    for number in range(40):
        near, far = socket.socketpair()
        near.close()
        sent.append(bytes([number]) * (number * 20_000))
        ends.channel.pass_on(far.detach(), sent[-1])
    for data in sent:
        taken, first_bytes = await asyncio.wait_for(ends.other_desk.came.get(), LIMIT_S)
        taken.close()
        assert first_bytes == data


async def test_words_go_both_ways(ends: Ends) -> None:
    ends.channel.say({"viewers": 3})
    ends.other.say({"viewers": 4})
    assert await asyncio.wait_for(ends.other_desk.words.get(), LIMIT_S) == {"viewers": 3}
    assert await asyncio.wait_for(ends.desk.words.get(), LIMIT_S) == {"viewers": 4}


async def test_what_nobody_took_comes_back_when_the_other_process_dies(client: tuple[socket.socket, int]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    desk = Desk()
    channel = Channel(ours, desk)
    near, descriptor = client
    channel.pass_on(descriptor, b"GET / HTTP/1.1\r\n\r\n")
    theirs.close()
    await asyncio.wait_for(desk.gone.wait(), LIMIT_S)
    assert desk.back == [(descriptor, b"GET / HTTP/1.1\r\n\r\n")]
    with socket.socket(fileno=descriptor) as kept:
        kept.sendall(b"later")
        assert near.recv(10) == b"later"


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def test_the_end_of_one_process_is_told_to_the_other(ends: Ends, client: tuple[socket.socket, int]) -> None:
    ends.other.close()
    await asyncio.wait_for(ends.desk.gone.wait(), LIMIT_S)
    near, descriptor = client
    os.close(descriptor)
    assert near.recv(10) == b""
