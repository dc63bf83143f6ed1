"""Large bodies: read in steps, their large values passed on unread, and no stream stalls meanwhile."""

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from routing import large
from routing.asgi import AsgiReply, Message
from routing.bodies import LARGE_BYTES, DecodeBody, NotJson, Raw, Unread, gather, prefill_body, why_not_split
from routing.exchange import Exchange
from routing.large import in_steps, names_addresses, read_large, read_object
from routing.leg import joined
from routing.reply import Request
from routing.windows import top_level
from tests.routing.scripted import Client, Seen, Wire, chat_chunk, prefill_answer, prefills, site, streams
from tests.routing.test_bodies import loaded


@pytest.mark.parametrize(
    "raw", [b"", b"[1]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":"x', b'{"a":[1', b'{"a":1}x', b'{"a" 1}', b"{1:2}"]
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(NotJson):
        list(top_level(raw))


async def test_large_values_stay_the_bytes_they_are() -> None:
    raw = b'{"model": "m", "messages": [ {"content": "' + b"x" * LARGE_BYTES + b'\\u00e9"} ], "n": 1}'
    body = (await read_large(raw)).body
    assert (body["model"], body["n"], type(body["messages"])) == ("m", 1, Unread)
    made = prefill_body("/v1/chat/completions", body)
    assert body["messages"].raw in made
    assert loaded(made)["messages"] == json.loads(raw)["messages"]


@pytest.mark.parametrize(
    ("prompt", "splits"), [("x" * 20_000, True), ([7] * 20_000, True), (["x" * 20_000, "y"], False)]
)
async def test_large_prompts_are_split_where_small_ones_are(prompt: object, splits: bool) -> None:
    body = (await read_large(json.dumps({"prompt": prompt}).encode())).body
    assert (why_not_split("/v1/completions", body) is None) is splits


@pytest.mark.parametrize("part", [1000, LARGE_BYTES - 1, LARGE_BYTES + 1, 10 * LARGE_BYTES])
def test_a_body_that_comes_in_parts_is_gathered_whole(part: int) -> None:
    body = bytes(range(256)) * (LARGE_BYTES // 100)
    parts: list[Raw] = []
    for at in range(0, len(body), part):
        gather(parts, body[at : at + part], min(at + part, len(body)))
    assert (len(parts), parts[0]) == (1, body)


async def test_a_body_that_has_grown_is_read_and_split_as_any_other() -> None:
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * LARGE_BYTES}], "n": 1}).encode()
    grown = await read_object(bytearray(raw))
    assert loaded(prefill_body("/v1/chat/completions", grown)) == loaded(
        prefill_body("/v1/chat/completions", await read_object(raw))
    )
    decode = DecodeBody(bytearray(raw), grown, touched=False, counts_by_usage=True).sendable(
        {"a": 1}, usage_forced=False
    )
    assert loaded(decode) == {**json.loads(raw), "kv_transfer_params": {"a": 1}}


@pytest.mark.parametrize("size", [100, 2 * LARGE_BYTES])
def test_head_and_body_go_out_together(size: int) -> None:
    whole = joined(b"head", b"x" * size)
    assert (b"".join(whole) if isinstance(whole, list) else whole) == b"head" + b"x" * size


async def test_a_large_body_reaches_both_servers_whole() -> None:
    messages = [{"role": "user", "content": f"{n} " + "wörd " * 800} for n in range(300)]
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.post({"model": "m", "messages": messages, "stream": True})
        assert place["P1"].seen[0].body["messages"] == messages
        assert place["D1"].seen[0].body["messages"] == messages
    assert answer.text == "abc"


async def test_where_the_prompt_begins_is_told() -> None:
    raw = b'{"model": "m", "user": "messages", "messages": ["' + b"x" * LARGE_BYTES + b'"]}'
    assert (await read_large(raw)).prompt_at == raw.index(b"[")


async def test_a_small_value_is_left_unread_when_many_were_read_before() -> None:
    piece = b'"k%d": "' + b"v" * 10_000 + b'",'
    raw = b"{" + b"".join(piece % number for number in range(200)) + b'"n": 2, "z": "' + b"v" * 10_000 + b'"}'
    body = (await read_large(raw)).body
    assert (type(body["k0"]), body["n"], type(body["z"])) == (str, 2, Unread)


@pytest.mark.parametrize(
    "raw",
    [
        b"{" + b"".join(b'"%d":1,' % number for number in range(10_000)) + b'"z":1}',
        b'{"vllm_xargs": {"a": "' + b"v" * LARGE_BYTES + b'"}}',
        b'{"sampling_params": {"a": "' + b"v" * LARGE_BYTES + b'"}}',
    ],
)
async def test_what_could_hide_anything_or_never_ends_is_refused(raw: bytes) -> None:
    with pytest.raises(NotJson):
        await read_large(raw)


async def test_of_several_bodies_one_step_is_done_in_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "STEP_S", 0.0)
    turn = 0
    done_in: list[int] = []

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turns)

    def steps() -> Iterator[None]:
        for _ in range(10):
            done_in.append(turn)
            yield

    loop = asyncio.get_running_loop()
    loop.call_soon(count_turns)
    await asyncio.gather(*(in_steps(steps()) for _ in range(3)))
    assert len(done_in) == 30
    assert len(set(done_in)) == 30


async def test_a_stream_goes_on_while_large_bodies_are_read() -> None:
    """Parsed at once they would stall the stream for as long as all of them take. In time of this thread alone: others
    may want the core."""
    all_read = asyncio.Event()
    came_s: list[float] = []

    async def endless(seen: Seen, wire: Wire) -> None:
        if len(seen.raw) > LARGE_BYTES:
            await wire.json({"id": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
            return
        await wire.start_stream()
        while not all_read.is_set():
            await wire.event(chat_chunk({"content": "x"}))
            await asyncio.sleep(0.01)
        await wire.event(chat_chunk({"content": "."}, "stop"))
        await wire.end_stream()

    body = json.dumps({"model": "m", "prompt": list(range(10_000, 810_000))}).encode()
    async with site({"N1": endless}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await client.head()
        following = asyncio.create_task(note_chunks(client, came_s))
        await asyncio.gather(*(place.post(body, "/v1/completions") for _ in range(3)))
        assert len(came_s) > 5
        all_read.set()
        await following
    assert max(later - earlier for earlier, later in pairwise(came_s)) < 1.0


async def note_chunks(client: Client, came_s: list[float]) -> None:
    while await client.chunk():
        came_s.append(time.thread_time())


async def test_an_answered_request_lets_go_of_its_body() -> None:
    """The client's connection keeps the request, and may stay open for long."""
    body = json.dumps({"model": "m", "messages": []}).encode()
    request = Request("POST", "/v1/chat/completions", b"", [], body)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async with site({"N1": streams()}) as place:
        reply = AsgiReply(receive, send)
        Exchange(place.router, request, reply).begin()
        await reply.pump()
        await place.records.wait()
    assert (sent[0]["status"], sent[-1]["more_body"], request.body) == (200, False, b"")


async def test_usage_is_put_right_in_a_large_answer() -> None:
    async def prefill(seen: Seen, wire: Wire) -> None:
        await wire.json(prefill_answer(cached=64))

    async def decode(seen: Seen, wire: Wire) -> None:
        usage = {"prompt_tokens": 128, "prompt_tokens_details": {"cached_tokens": 128}}
        await wire.json({"id": "x", "usage": usage, "choices": ["\u00e9" * LARGE_BYTES]})

    async with site({"P1": prefill, "D1": decode}) as place:
        answer = await place.chat()
    assert answer.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}
    assert answer.json["choices"] == ["\u00e9" * LARGE_BYTES]


@pytest.mark.parametrize("at", [0, LARGE_BYTES - 10, 3 * LARGE_BYTES])
async def test_an_address_is_found_wherever_it_stands(at: int) -> None:
    body = b'{"text": "' + b"a" * at + b'", "image_url": {"url": "http://127.0.0.1/x.png"}}'
    assert await names_addresses(body)
    assert await names_addresses([body[:5], memoryview(body)[5:]])


@pytest.mark.parametrize("at", range(0, 60, 3))
async def test_a_picture_that_is_sent_along_is_no_address(at: int) -> None:
    body = b'{"text": "' + b"a" * (LARGE_BYTES + at) + b'", "image_url": {"url": "data:image/png;base64,AAAA"}}'
    assert not await names_addresses(body)


async def test_what_looks_like_an_address_in_a_text_is_none() -> None:
    assert not await names_addresses(json.dumps({"text": '"url": "http://127.0.0.1"'}).encode())
