"""Streams: relayed as they come, ended visibly, and never a success without an answer."""

import asyncio
import json
from typing import Any

import pytest

from routing.front import Front
from tests.routing.scripted import (
    Client,
    Face,
    Seen,
    Wire,
    chat_chunk,
    event,
    prefills,
    site,
    streams,
    until,
    usage_chunk,
)
from tests.waiting import LIMIT_S

FACES: list[Face] = ["direct", "asgi"]


@pytest.mark.parametrize("face", FACES)
async def test_each_chunk_arrives_before_the_next_is_made(face: Face) -> None:
    step = asyncio.Event()

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for text in "abc":
            await wire.event(chat_chunk({"content": text}))
            await step.wait()
            step.clear()
        await wire.event(chat_chunk({"content": "."}, "stop"))
        await wire.end_stream()

    async with site({"P1": prefills, "D1": script}, face=face) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await client.head()
        for text in "abc":
            chunk = await asyncio.wait_for(client.chunk(), LIMIT_S)
            assert json.loads(chunk[6:])["choices"][0]["delta"]["content"] == text
            step.set()
        rest = await client.chunk() + await client.chunk()
    assert b"[DONE]" in rest


@pytest.mark.parametrize("face", FACES)
async def test_a_decode_server_that_dies_mid_stream_ends_it_with_an_error(face: Face) -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for text in "abc":
            await wire.event(chat_chunk({"content": text}))
        await asyncio.sleep(0.05)
        wire.reset()

    async with site({"P1": prefills, "D1": script, "D2": script}, face=face) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
        assert len(place["D1"].seen) + len(place["D2"].seen) == 1
    assert answer.text == "abc"
    assert "closed the connection in the middle" in answer.events[-2]["error"]["message"]
    assert answer.events[-1] == "[DONE]"
    assert (record.outcome, record.completion_tokens) == ("failed", 3)


async def test_an_event_that_was_cut_off_is_followed_by_a_readable_error() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await wire.chunk(event(chat_chunk({"content": "b"}))[:40])
        await asyncio.sleep(0.05)
        wire.reset()

    async with site({"N1": script}) as place:
        answer = await place.chat(stream=True)
    assert answer.body.count(b"\n\n") == 3
    assert "error" in answer.events[-2]


@pytest.mark.parametrize("stream_options", [None, {"include_usage": True}])
async def test_done_without_a_finish_reason_is_tried_again_elsewhere(stream_options: Any) -> None:
    async def fails(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"role": "assistant", "content": ""}))
        if stream_options:
            await wire.event(usage_chunk(8, 0))
        await wire.end_stream()

    async with site({"P1": prefills, "D1": fails}) as place:
        place["D1"].script = fails
        place.engines["D1"].script = once(fails, streams())
        answer = await place.chat(stream=True, stream_options=stream_options)
        record = await place.record()
    assert answer.text == "abc"
    assert (record.outcome, record.attempts, record.route) == ("ok", 2, "fallback")


def once(first: Any, then: Any) -> Any:
    calls = iter([first])

    async def script(seen: Seen, wire: Wire) -> None:
        await next(calls, then)(seen, wire)

    return script


async def test_done_without_a_finish_reason_is_an_error_when_no_try_is_left() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.end_stream()

    async with site({"P1": prefills, "D1": script}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert answer.status == 502
    assert "without a finish reason" in answer.json["error"]["message"]
    assert record.outcome == "failed"


async def test_done_without_a_finish_reason_after_tokens_is_an_error_in_the_stream() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await wire.end_stream()

    async with site({"P1": prefills, "D1": script}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert [type(item) for item in answer.events] == [dict, dict, str]
    assert "finish reason" in answer.events[1]["error"]["message"]
    assert record.outcome == "failed"


async def test_an_error_event_of_the_engine_passes_once() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await wire.event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
        await wire.end_stream()

    async with site({"N1": script}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert answer.body.count(b'"error"') == 1
    assert answer.events[-1] == "[DONE]"
    assert record.outcome == "failed"
    assert "EngineCore" in record.error


class Recorded:
    """A transport that tells what was written to it, call by call."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)


async def test_the_end_of_an_answer_goes_out_with_its_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    made = Front.connection_made

    def recorded(front: Front, transport: asyncio.Transport) -> None:
        made(front, Recorded(transport, written))

    monkeypatch.setattr(Front, "connection_made", recorded)

    has_first = asyncio.Event()

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await has_first.wait()
        last = [event(chat_chunk({"content": "."}, "stop")), b"data: [DONE]\n\n", b""]
        await wire.send(b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in last))

    async with site({"P1": prefills, "D1": script}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await client.head()
        await client.chunk()
        has_first.set()
        while await client.chunk():
            pass
    assert written[-1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_stream_that_ends_at_its_first_token_is_complete() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"role": "assistant", "content": ""}))
        await wire.event(chat_chunk({"content": ""}, "stop"))
        await wire.end_stream()

    async with site({"P1": prefills, "D1": script}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert answer.events[-1] == "[DONE]"
    assert (record.outcome, record.first_token_ms) == ("ok", None)
    assert place.nothing_is_held()


@pytest.mark.parametrize("face", FACES)
async def test_everything_in_a_stream_passes_byte_for_byte(face: Face) -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"reasoning": "think"},
        {"reasoning_content": "more"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 20_000}}]},
        {"content": "漢字 🚀", "unknown": {"a": 1}},
        {"content": " done"},
    ]
    data = b"".join(event(chat_chunk(delta)) for delta in deltas) + b": comment\n\n"
    data += event(chat_chunk({"content": "."}, "stop")) + b"data: [DONE]\n\n"

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for start in range(0, len(data), 333):
            await wire.chunk(data[start : start + 333])
        await wire.send(b"0\r\n\r\n")

    async with site({"P1": prefills, "D1": script}, face=face) as place:
        answer = await place.chat(stream=True)
    assert answer.body == data


async def test_chunk_frames_may_be_cut_anywhere() -> None:
    data = b"".join(event(chat_chunk({"content": text})) for text in "abcd") + event(
        chat_chunk({"content": "."}, "stop")
    )

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:500], data[500:], b"data: [DONE]\n\n"))
        for start in range(0, len(framed), 7):
            await wire.send(framed[start : start + 7])
            await asyncio.sleep(0)
        await wire.send(b"0\r\n\r\n")

    async with site({"N1": script}) as place:
        answer = await place.chat(stream=True)
    assert (answer.text, answer.whole) == ("abcd.", True)


async def test_a_stream_without_framing_ends_when_the_server_closes() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        await wire.send(event(chat_chunk({"content": "a"}, "stop")) + b"data: [DONE]\n\n")
        wire.writer.close()

    async with site({"N1": script}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert (answer.text, answer.whole, record.outcome) == ("a", True, "ok")


async def test_the_usage_chunk_reaches_only_clients_that_asked() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        without = await place.chat(stream=True)
        with_usage = await place.chat(stream=True, stream_options={"include_usage": True})
        records = await place.records.wait(2)
    assert [item for item in without.events if item != "[DONE]" and not item["choices"]] == []
    assert len([item for item in with_usage.events if item != "[DONE]" and not item["choices"]]) == 1
    assert [record.completion_tokens for record in records] == [3, 3]


async def test_a_slow_reader_slows_the_server_and_loses_nothing() -> None:
    sent = 0

    async def script(seen: Seen, wire: Wire) -> None:
        nonlocal sent
        await wire.start_stream()
        for _ in range(3000):
            await wire.event(chat_chunk({"content": "x" * 4000}))
            sent += 1
        await wire.event(chat_chunk({"content": "."}, "stop"))
        await wire.end_stream()

    async with site({"N1": script}) as place, Client(place.port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.chat(stream=True)
        await until(lambda: sent > 10)
        await settled(lambda: sent)
        assert sent < 3000
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answer = await client.answer()
    assert len(answer.text) == 3000 * 4000 + 1


async def settled(value: Any) -> None:
    """Returns when the value has stopped to change."""
    last = None
    while last != value():
        last = value()
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
async def test_speech_is_written_down_as_it_comes_with_an_end_for_each_piece_of_it(path: str) -> None:
    step = asyncio.Event()
    texts = ["a", "b", "c", "d", "e"]

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for number, text in enumerate(texts):
            await wire.event(chat_chunk({"content": text}, "stop" if number % 2 else None))
            await step.wait()
            step.clear()
        await wire.event(chat_chunk({"content": ""}, "stop"))
        await wire.end_stream()

    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n\r\n\x00\xff\r\n--b--\r\n'
    async with site({"N1": script}) as place, Client(place.port) as client:
        await client.send("POST", path, form, {"content-type": "multipart/form-data; boundary=b"})
        assert (await client.head())[0] == 200
        for text in texts:
            assert f'"content":"{text}"'.encode() in await client.chunk()
            step.set()
        rest = b""
        while part := await client.chunk():
            rest += part
        record = await place.record()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert (record.outcome, record.streamed, len(record.gaps_ms)) == ("ok", True, len(texts) - 1)
