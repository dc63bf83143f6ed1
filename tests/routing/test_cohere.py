"""Cohere's chat, which engines may offer as well: split like the others, its stream read, errors in its own shape."""

from typing import Any

import orjson
import pytest

from routing.bodies import why_not_split
from routing.paths import COHERE
from routing.sse import Scanner
from routing.usage import read_usage
from tests.routing.scripted import HANDOFF, SSE, Seen, Wire, answers, head, resets, site

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
DONE = b"data: [DONE]\n\n"


def usage(told: float, cached: int | None = None) -> dict[str, Any]:
    counts = {"input_tokens": 8.0, "output_tokens": told}
    return {"billed_units": counts, "tokens": counts, **({} if cached is None else {"cached_tokens": cached})}


def event(kind: str, **more: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps({"type": kind, **more})


def text(piece: str) -> bytes:
    return event("content-delta", index=0, delta={"message": {"content": {"text": piece}}})


def end(told: float = 3, **more: Any) -> bytes:
    return event("message-end", id="1", delta={"finish_reason": "MAX_TOKENS", "usage": usage(told, **more)})


START = event("message-start", id="1", delta={"message": {"role": "assistant"}}) + event("content-start", index=0)


async def prefills(seen: Seen, wire: Wire) -> None:
    await wire.json({"id": "1", "usage": usage(1, cached=4), "kv_transfer_params": HANDOFF})


def streams(*events: bytes) -> Any:
    async def script(seen: Seen, wire: Wire) -> None:
        if not seen.body.get("stream"):
            await wire.json({"id": "1", "message": {}, "usage": usage(3, cached=8)})
            return
        await wire.send(head(200, {"content-type": SSE, "transfer-encoding": "chunked"}))
        for one in events:
            await wire.chunk(one)
        await wire.send(b"0\r\n\r\n")

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_split(stream: bool) -> None:
    told = (START, text("a"), text("b"), text("c"), end(cached=8), DONE)
    async with site({"P1": prefills, "D1": streams(*told)}) as place:
        answer = await place.post(BODY | {"stream": stream, "stop_sequences": ["x"]}, COHERE)
        record = await place.record()
        prefill, decode = place["P1"].seen[0].body, place["D1"].seen[0].body
    assert (prefill["max_tokens"], prefill["stream"], "stop_sequences" in prefill) == (1, False, False)
    assert (decode["kv_transfer_params"], decode["max_tokens"]) == (HANDOFF, 9)
    assert (record.route, record.outcome, record.completion_tokens) == ("split", "ok", 3)
    assert (record.prompt_tokens, record.cached_tokens) == (8, 4)
    assert b'"cached_tokens":4' in answer.body
    assert answer.body.startswith(START) is stream


async def test_a_stream_that_ends_without_a_token_has_failed() -> None:
    async with site({"D1": streams(START, end(0), DONE), "D2": streams(START, text("a"), end(1), DONE)}) as place:
        for _ in range(4):
            answer = await place.post(BODY | {"stream": True}, COHERE)
            assert text("a") in answer.body


def test_an_error_at_the_end_is_known() -> None:
    scanner = Scanner("cohere", drop_usage=False)
    scanner.feed(START + text("a") + event("message-end", delta={"error": "broke", "finish_reason": "ERROR"}) + DONE)
    assert scanner.error == {"message": "broke"}
    assert not scanner.is_complete


async def test_own_errors_have_its_shape() -> None:
    async with site({"N1": resets}) as place:
        unknown = await place.post({**BODY, "model": "other"}, COHERE)
        lost = await place.post(BODY, COHERE)
    assert (unknown.status, set(unknown.json)) == (404, {"message"})
    assert (lost.status, set(lost.json)) == (502, {"message"})


async def test_a_500_that_names_what_is_wrong_with_the_request_blames_no_server() -> None:
    refusal = {"message": "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)"}
    async with site({"P1": answers(500, refusal), "P2": answers(500, refusal), "D1": streams()}) as place:
        for _ in range(8):
            answer = await place.post(BODY | {"temperature": -1}, COHERE)
            assert (answer.status, answer.json) == (500, refusal)
        assert len(place["P1"].seen) + len(place["P2"].seen) == 8
        assert {view.state for view in place.router.circuits().values()} == {"closed"}


async def test_it_is_rendered_by_one_server() -> None:
    async with site({"P1": prefills, "D1": answers(200, {"token_ids": [1]})}) as place:
        answer = await place.post(BODY, f"{COHERE}/render")
    assert answer.json == {"token_ids": [1]}


def test_what_it_refuses_goes_to_one_server() -> None:
    assert why_not_split(COHERE, BODY) is None
    assert why_not_split(COHERE, {"messages": []}) is not None
    assert why_not_split(COHERE, BODY | {"max_tokens": -1}) is not None


def test_its_counts_are_read() -> None:
    read = read_usage(usage(3.0, cached=2))
    assert read is not None
    assert (read.prompt_tokens, read.completion_tokens, read.cached_tokens) == (8, 3, 2)
