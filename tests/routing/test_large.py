"""Large bodies: read in steps, their large values passed on unread, and no stream stalls meanwhile."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.bodies import NotJson, Unread, prefill_body, why_not_split
from routing.large import LARGE_BYTES, read_large, top_level
from tests.routing.scripted import Client, Seen, Wire, chat_chunk, prefills, site, streams
from tests.routing.test_bodies import objects


@given(objects, st.sampled_from([None, 1]), st.booleans())
def test_the_top_level_is_what_parsing_finds(body: dict[str, Any], indent: int | None, ascii_: bool) -> None:
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    found = {name: json.loads(raw[start:end]) for name, start, end in top_level(raw) if name is not None}
    assert found == json.loads(raw)


@pytest.mark.parametrize(
    "raw", [b"", b"[1]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":"x', b'{"a":[1', b'{"a":1}x', b'{"a" 1}', b"{1:2}"]
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(NotJson):
        list(top_level(raw))


async def test_large_values_stay_the_bytes_they_are() -> None:
    raw = b'{"model": "m", "messages": [ {"content": "' + b"x" * LARGE_BYTES + b'\\u00e9"} ], "n": 1}'
    body = await read_large(raw)
    assert (body["model"], body["n"], type(body["messages"])) == ("m", 1, Unread)
    made = prefill_body("/v1/chat/completions", body)
    assert b"\\u00e9" in made
    assert json.loads(made)["messages"] == json.loads(raw)["messages"]


@pytest.mark.parametrize(
    ("prompt", "splits"), [("x" * 20_000, True), ([7] * 20_000, True), (["x" * 20_000, "y"], False)]
)
async def test_large_prompts_are_split_where_small_ones_are(prompt: object, splits: bool) -> None:
    body = await read_large(json.dumps({"prompt": prompt}).encode())
    assert (why_not_split("/v1/completions", body) is None) is splits


async def test_a_large_body_reaches_both_servers_whole() -> None:
    messages = [{"role": "user", "content": f"{n} " + "wörd " * 800} for n in range(300)]
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.post({"model": "m", "messages": messages, "stream": True})
        assert place["P1"].seen[0].body["messages"] == messages
        assert place["D1"].seen[0].body["messages"] == messages
    assert answer.text == "abc"


async def test_a_stream_goes_on_while_large_bodies_are_read() -> None:
    """Generous, for busy machines: parsed at once they would stall the stream for as long as all of them take."""

    async def endless(seen: Seen, wire: Wire) -> None:
        if len(seen.raw) > LARGE_BYTES:
            await wire.json({"id": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
            return
        await wire.start_stream()
        for _ in range(200):
            await wire.event(chat_chunk({"content": "x"}))
            await asyncio.sleep(0.01)
        await wire.event(chat_chunk({"content": "."}, "stop"))
        await wire.end_stream()

    body = json.dumps({"model": "m", "prompt": list(range(10_000, 810_000))}).encode()
    async with site({"N1": endless}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await client.head()
        await asyncio.gather(*(place.post(body, "/v1/completions") for _ in range(3)))
        record = next(iter(place.router.active)).record
        assert len(record.gaps_ms) > 5
        assert max(record.gaps_ms) < 1000
