"""A request that offers HTTP/2, as `curl --http2` sends it, is served in HTTP/1.1 like any other."""

import json
from collections.abc import AsyncIterator

import pytest

from tests.routing.scripted import Client, Site, chat_body, prefills, site, streams

OFFER = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
CHAT = "/v1/chat/completions"


@pytest.fixture
async def place() -> AsyncIterator[Site]:
    async with site({"P1": prefills, "D1": streams()}) as place:
        yield place


def offering(body: bytes, **headers: str) -> bytes:
    lines = {"host": "router", "content-length": str(len(body)), **OFFER, **headers}
    return "\r\n".join([f"POST {CHAT} HTTP/1.1", *(f"{k}: {v}" for k, v in lines.items()), "", ""]).encode() + body


@pytest.mark.parametrize("stream", [True, False])
async def test_it_is_answered_with_its_body_read(place: Site, stream: bool) -> None:
    answer = await place.post(chat_body(stream=stream), headers=OFFER)
    assert (answer.status, answer.headers["x-switchyard-route"]) == (200, "split")
    assert place["D1"].seen[0].body["messages"] == chat_body()["messages"]


async def test_a_request_without_a_body_is_answered(place: Site) -> None:
    assert (await place.get("/v1/models", OFFER)).status == 200


async def test_it_may_come_in_any_pieces(place: Site) -> None:
    data = offering(json.dumps(chat_body()).encode())
    async with Client(place.port) as client:
        for at in range(len(data)):
            client.writer.write(data[at : at + 1])
            await client.writer.drain()
        assert (await client.answer()).status == 200


async def test_its_connection_takes_more_requests_with_and_without_the_offer(place: Site) -> None:
    async with Client(place.port) as client:
        for headers in (OFFER, {}, OFFER):
            await client.send("POST", CHAT, chat_body(), headers)
            assert (await client.answer()).status == 200


async def test_many_that_are_sent_at_once_are_answered_one_after_the_other(place: Site) -> None:
    async with Client(place.port) as client:
        client.writer.write(offering(json.dumps(chat_body()).encode()) * 100)
        for _ in range(100):
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("other", ["keep-alive", "HTTP2-Settings"])
async def test_the_offer_may_stand_in_one_of_several_connection_headers(place: Site, other: str) -> None:
    data = offering(json.dumps(chat_body()).encode(), Connection="Upgrade")
    async with Client(place.port) as client:
        client.writer.write(data.replace(b"Upgrade: h2c", b"Connection: " + other.encode() + b"\r\nUpgrade: h2c"))
        assert (await client.answer()).status == 200
    assert place["D1"].seen[0].body["messages"] == chat_body()["messages"]


async def test_a_chunked_body_is_read(place: Site) -> None:
    body = json.dumps(chat_body()).encode()
    head = offering(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    async with Client(place.port) as client:
        client.writer.write(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert (await client.answer()).status == 200


async def test_the_connection_ends_after_it_when_the_client_says_so(place: Site) -> None:
    data = offering(json.dumps(chat_body()).encode(), Connection="close, Upgrade, HTTP2-Settings")
    async with Client(place.port) as client:
        client.writer.write(data)
        assert (await client.answer()).status == 200
        assert await client.reader.read() == b""


async def test_nothing_of_the_offer_reaches_a_server(place: Site) -> None:
    await place.post(chat_body(), headers=OFFER)
    for engine in place.engines.values():
        assert not {"upgrade", "http2-settings"} & set(engine.seen[0].headers)


async def test_what_is_no_request_is_refused_as_before(place: Site) -> None:
    async with Client(place.port) as client:
        client.writer.write(b"NONSENSE\r\n\r\n")
        assert (await client.answer()).status == 400
