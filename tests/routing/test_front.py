"""Which requests of a connection are the router's own, however they come, and what is left to uvicorn."""

import asyncio
import json
from weakref import WeakSet

import pytest
import uvicorn

from routing import front
from routing.uvicorn_protocol import OldClients, protocol_for
from tests.routing.scripted import Client, Site, chat_body, hangs, site, streams, until

BODY = json.dumps(chat_body()).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-length: %d\r\n\r\n" % len(BODY)
REQUEST = HEAD + BODY
OTHER = b"GET /v1/nothing HTTP/1.1\r\nhost: router\r\n\r\n"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was left to uvicorn, connection by connection."""
    found: list[bytes] = []
    met: WeakSet[OldClients] = WeakSet()
    received = OldClients.data_received

    def noted(protocol: OldClients, data: bytes) -> None:
        if protocol not in met:
            met.add(protocol)
            found.append(data)
        received(protocol, data)

    monkeypatch.setattr(OldClients, "data_received", noted)
    return found


async def pieces(client: Client, *parts: bytes) -> None:
    """Each in a read of its own."""
    for part in parts:
        client.writer.write(part)
        await client.writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("at", [1, 20, 35, len(HEAD) - 3, len(HEAD) - 1, len(HEAD), len(HEAD) + 1, len(REQUEST) - 1])
async def test_a_request_may_come_in_any_pieces(at: int, left: list[bytes]) -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        for _ in range(2):
            await pieces(client, REQUEST[:at], REQUEST[at:])
            assert (await client.answer()).status == 200
    assert left == []
    assert [seen.body["messages"] for seen in place["N1"].seen] == [chat_body()["messages"]] * 2


async def test_a_head_in_many_pieces_is_served_all_the_same(left: list[bytes]) -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        await pieces(client, *(bytes((byte,)) for byte in REQUEST[:40]), REQUEST[40:])
        assert (await client.answer()).status == 200
    assert len(left) == 1


@pytest.mark.parametrize("at", [0, len(OTHER) - 1, len(OTHER)])
async def test_requests_sent_before_the_answer_are_answered_in_turn(at: int, left: list[bytes]) -> None:
    both = REQUEST + OTHER
    at += len(REQUEST)
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        await pieces(client, both[:at], both[at:])
        assert b"chat.completion" in (await client.answer()).body
        assert (await client.answer()).status == 404
        await pieces(client, REQUEST)
        assert b"chat.completion" in (await client.answer()).body
    assert OTHER.startswith(b"".join(left))


async def test_a_client_that_leaves_with_a_request_waiting_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "LOOK_EVERY_S", 0.02)
    async with site({"N1": hangs}) as place:
        async with Client(place.port) as client:
            await pieces(client, REQUEST + OTHER)
            await until(lambda: place["N1"].open == 1)
        await until(lambda: place["N1"].open == 0)
        assert (await place.record()).outcome == "cancelled"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /elsewhere HTTP/1.1\r\nhost: router\r\n\r\n", 404),
        (HEAD.replace(b"host", b"expect: 100-continue\r\nhost") + BODY, 200),
        (HEAD.replace(b"content-length: %d" % len(BODY), b"transfer-encoding: chunked"), 200),
        (REQUEST.replace(b"/chat/", b"/%63hat/"), 200),
        (HEAD.replace(b"content-length", b"content-length: 1\r\ncontent-length"), 400),
        (HEAD.replace(b"host", b"transfer-encoding: chunked\r\nhost"), 400),
        (REQUEST.replace(b"POST", b"PO ST"), 400),
        (b"POST /v1/chat/completions HTTP/1.1\nhost: router\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    ],
    ids=["path", "expect", "chunks", "escaped", "two lengths", "length and chunks", "line", "no returns", "TLS"],
)
async def test_what_is_not_plain_is_uvicorns(request_bytes: bytes, status: int, left: list[bytes]) -> None:
    if b"transfer-encoding" in request_bytes and b"content-length" not in request_bytes:
        request_bytes += b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        client.writer.write(request_bytes)
        answered, headers = await client.head()
        while answered == 100:
            answered, headers = await client.head()
        assert answered == status
        assert len(left) == 1
        if status < 400 or answered == 404:
            await client.reader.readexactly(int(headers["content-length"]))
            await pieces(client, REQUEST)
            assert (await client.answer()).status == 200
            assert len(left) == 1


@pytest.mark.parametrize("first", [b"", b"GET /elsewhere HTTP/1.1\r\nhost: router\r\n\r\n"], ids=["front", "uvicorn"])
async def test_a_body_that_is_said_to_be_too_long_is_refused_before_it_comes(first: bytes) -> None:
    async with site({"N1": streams()}, max_body_bytes=1000) as place, Client(place.port) as client:
        if first:
            await pieces(client, first)
            assert (await client.answer()).status == 404
        await pieces(client, HEAD.replace(b"%d" % len(BODY), b"1001"))
        assert (await client.answer()).status == 413
        assert place.nothing_is_held()


async def test_empty_lines_before_a_request_are_passed_over(left: list[bytes]) -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        await pieces(client, b"\r\n" + REQUEST)
        assert (await client.answer()).status == 200


async def idle(place: Site, keep_alive_s: float) -> uvicorn.Server:
    """Another port of the same router, whose idle connections end sooner."""
    config = uvicorn.Config(
        place.router,
        http=protocol_for(place.router),
        interface="asgi3",
        port=0,
        lifespan="off",
        log_level="critical",
        timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]
    )
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    place.port = listening.getsockname()[1]
    server.serving = asyncio.create_task(server.serve(sockets=[listening]))  # type: ignore[attr-defined]
    await until(lambda: server.started)
    return server


async def test_an_idle_connection_ends_and_a_busy_one_does_not() -> None:
    async with site({"N1": streams(["a"] * 30, gap_s=0.01)}) as place:
        server = await idle(place, 0.1)
        async with Client(place.port) as client:
            for _ in range(2):
                await client.chat(stream=True)
                assert (await client.answer()).whole
            async with asyncio.timeout(10):
                assert await client.reader.read() == b""
        server.should_exit = True
        await server.serving  # type: ignore[attr-defined]


async def test_a_server_that_ends_lets_answers_end_first() -> None:
    async with site({"N1": streams(["a"] * 20, gap_s=0.01)}) as place:
        server = await idle(place, 75)
        async with Client(place.port) as busy, Client(place.port) as resting:
            await pieces(resting, OTHER)
            assert (await resting.answer()).status == 404
            await busy.chat(stream=True)
            assert (await busy.head())[0] == 200
            server.should_exit = True
            assert await resting.reader.read() == b""
            rest = await busy.reader.read()
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await server.serving  # type: ignore[attr-defined]


async def test_the_rest_of_a_connection_is_uvicorns_once_it_was_left(left: list[bytes]) -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        for _ in range(3):
            await pieces(client, b"GET /elsewhere HTTP/1.1\r\nhost: router\r\n\r\n")
            assert (await client.answer()).status == 404
    assert len(left) == 1
