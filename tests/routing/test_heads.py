"""A head that is too long, or never ends, takes no memory and no time; neither does what follows a body."""

import pytest

from routing.upgrades import MAX_HEAD_BYTES
from tests.routing.scripted import Client, chat_body, site, streams

CHAT_PATH = "/v1/chat/completions"
PART = b"x-long: " + b"x" * 8000 + b"\r\n"
LINE = f"POST {CHAT_PATH} HTTP/1.1\r\n".encode()


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (LINE, PART),
        (LINE + b"x-long: ", b"x" * 8000),
        (b"GET /elsewhere HTTP/1.1\r\n", PART),
        (b"GET /", b"x" * 8000),
        (b"", b"\r\n" * 4000),
    ],
    ids=["many headers", "one header", "another path", "a path", "empty lines"],
)
async def test_a_head_without_an_end_is_refused(start: bytes, part: bytes) -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        client.writer.write(start)
        for _ in range(2 * MAX_HEAD_BYTES // len(part)):
            client.writer.write(part)
        status, headers = await client.head()
        body = await client.reader.readexactly(int(headers["content-length"]))
        assert status == 431
        assert b"Send shorter or fewer headers" in body
        assert await client.reader.read() == b""


async def test_a_long_head_with_an_end_is_served_whatever_it_came_in() -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        for size in (1, MAX_HEAD_BYTES - 4096):
            await client.send("POST", CHAT_PATH, chat_body(), {"x-session-id": "s" * size})
            assert (await client.answer()).status == 200


async def test_what_follows_a_body_without_an_end_is_refused() -> None:
    head = b"host: router\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        client.writer.write(LINE + head)
        for _ in range(2 * MAX_HEAD_BYTES // len(PART)):
            client.writer.write(PART)
        assert (await client.head())[0] == 431
        assert list(place.router.active) == []


async def test_a_body_that_is_no_http_is_a_400() -> None:
    head = b"host: router\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n"
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        client.writer.write(LINE + head)
        assert (await client.head())[0] == 400
        assert list(place.router.active) == []


async def test_a_body_of_any_length_is_no_head() -> None:
    async with site({"N1": streams()}) as place:
        assert (await place.post(chat_body(extra="x" * 4 * MAX_HEAD_BYTES))).status == 200


async def test_bytes_that_are_no_request_are_refused_after_the_answer_under_way() -> None:
    async with site({"N1": streams(["a"] * 20, gap_s=0.01)}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        assert (await client.head())[0] == 200
        client.writer.write(b"no request\r\n\r\n")
        answered, _, refused = (await client.reader.read()).partition(b"0\r\n\r\n")
        assert answered.endswith(b"data: [DONE]\n\n\r\n")
        assert refused.startswith(b"HTTP/1.1 400 ")
        assert place.nothing_is_held()
