"""What is wrong with a stream's request engines often say in the stream, and a prefill server, which is asked for none,
before: its client hears of it as from one server."""

from collections.abc import Mapping

import pytest

from routing.circuit import FAILURES_TO_OPEN
from routing.table import Policy
from tests.routing.scripted import (
    Face,
    Json,
    Script,
    Seen,
    Wire,
    answers,
    chat_body,
    event,
    resets,
    site,
    streams,
)

BAD: Json = {"error": {"message": "Choice '[]' cannot be an empty list", "type": "BadRequestError", "code": 400}}
refuses = answers(400, BAD)
CHOICE: Json = {"structured_outputs": {"choice": []}}


def in_stream(payload: Json, *, done: bool = True) -> Script:
    """Refuses whoever asks for a stream in it, others before."""

    async def script(seen: Seen, wire: Wire) -> None:
        if not seen.body.get("stream"):
            await wire.json(BAD, 400)
            return
        await wire.start_stream()
        await wire.event(payload)
        await wire.end_stream(done=done)

    return script


async def breaks_its_stream(seen: Seen, wire: Wire) -> None:
    await wire.start_stream()
    await wire.event({"type": "response.created", "response": {"id": "resp_1"}})
    wire.reset()


async def only_ends(seen: Seen, wire: Wire) -> None:
    await wire.start_stream()
    await wire.end_stream()


@pytest.mark.parametrize("face", ["direct", "asgi"])
@pytest.mark.parametrize("stream", [True, 1, "true"])
async def test_a_stream_that_prefill_refuses_is_refused_by_decode_in_its_own_way(stream: object, face: Face) -> None:
    both = {"P1": refuses, "P2": refuses, "D1": in_stream(BAD), "D2": in_stream(BAD)}
    async with site(both, face=face) as place:
        answer = await place.chat(stream=stream, **CHOICE)
        record = await place.record()
        (asked,) = place["D1"].seen + place["D2"].seen
        assert len(place["P1"].seen + place["P2"].seen) == 1
        assert place.nothing_is_held()
    assert "kv_transfer_params" not in asked.body
    assert asked.body["structured_outputs"] == CHOICE["structured_outputs"]
    assert (answer.status, answer.body) == (200, event(BAD) + b"data: [DONE]\n\n")
    assert (record.outcome, record.attempts, record.route) == ("refused", 1, "fallback")
    assert record.reason == f"fallback: P{record.prefill_server[1:] if record.prefill_server else ''} refused it (400)"
    assert record.error == "the engine reported an error in its stream: Choice '[]' cannot be an empty list"


async def test_a_stream_that_both_refuse_before_it_begins_is_refused_in_the_words_of_decode() -> None:
    other: Json = {"error": {"message": "in my words", "code": 400}}
    async with site({"P1": refuses, "D1": answers(400, other, {"x-detail": "7"})}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert (answer.status, answer.json, answer.headers["x-detail"]) == (400, other, "7")
    assert (record.outcome, record.attempts) == ("refused", 1)


async def test_a_stream_that_only_prefill_refuses_is_done_by_decode() -> None:
    async with site({"P1": refuses, "D1": streams()}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert (answer.text, record.route, record.reason) == ("abc", "fallback", "fallback: P1 refused it (400)")


@pytest.mark.parametrize(
    "decode", [answers(500, BAD), answers(503, BAD), answers(429, BAD), resets, breaks_its_stream, only_ends]
)
async def test_where_decode_has_no_answer_that_of_prefill_stands_and_nobody_is_asked_again(decode: Script) -> None:
    async with site({"P1": refuses, "P2": refuses, "D1": decode, "D2": decode}) as place:
        for number in range(FAILURES_TO_OPEN * 2):
            answer = await place.chat(stream=True)
            assert (answer.status, answer.json) == (400, BAD)
            assert len(place["D1"].seen + place["D2"].seen) == number + 1
        records = await place.records.wait(FAILURES_TO_OPEN * 2)
        assert {view.failures for view in place.router.circuits().values()} == {0}
    assert {(record.outcome, record.attempts) for record in records} == {("refused", 1)}


QUOTED = (
    "2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, "
    "input_value={'error': {'message': 'Fa...am': None, 'code': 400}}, input_type=dict]"
)
MESSAGES_ERROR: Json = {"type": "error", "error": {"type": "internal_error", "message": QUOTED}}


@pytest.mark.parametrize(
    "scripts", [{"P1": refuses, "D1": in_stream(MESSAGES_ERROR)}, {"N1": in_stream(MESSAGES_ERROR)}]
)
async def test_an_error_that_only_quotes_its_code_is_the_clients_too(scripts: Mapping[str, Script]) -> None:
    async with site(scripts) as place:
        body = {**chat_body(stream=True), "max_tokens": 5}
        for _ in range(FAILURES_TO_OPEN * 2):
            answer = await place.post(body, "/v1/messages")
            assert answer.body.startswith(event(MESSAGES_ERROR))
        records = await place.records.wait(FAILURES_TO_OPEN * 2)
        assert {view.failures for view in place.router.circuits().values()} == {0}
    assert {(record.outcome, record.attempts, record.status) for record in records} == {("refused", 1, 200)}


async def test_words_about_a_length_inside_the_stream_pass_as_they_came() -> None:
    """They quote what the client wrote; asked for the whole, the prefill server begins a stream."""
    quoting: Json = {"error": {"message": "no regex: maximum context length(", "type": "BadRequestError", "code": 400}}

    async def prefill(seen: Seen, wire: Wire) -> None:
        await (in_stream(quoting) if seen.body.get("stream") else answers(400, quoting))(seen, wire)

    async with site({"P1": prefill, "D1": in_stream(quoting)}) as place:
        answer = await place.chat(stream=True)
    assert (answer.status, answer.body) == (200, event(quoting) + b"data: [DONE]\n\n")


async def test_comments_that_went_out_before_change_nothing_in_it() -> None:
    async with site({"P1": refuses, "D1": in_stream(BAD)}, Policy(comment_every_s=0.01)) as place:
        answer = await place.chat(stream=True)
    assert answer.body.replace(b": waiting\n\n", b"") == event(BAD) + b"data: [DONE]\n\n"


async def test_who_asks_for_no_stream_costs_decode_nothing() -> None:
    async with site({"P1": refuses, "D1": in_stream(BAD)}) as place:
        for stream in (False, None, 0):
            assert (await place.chat(stream=stream)).json == BAD
        assert place["D1"].seen == []


@pytest.mark.parametrize("status", [404, 413, 501])
async def test_what_no_engine_says_in_a_stream_costs_decode_nothing(status: int) -> None:
    async with site({"P1": answers(status, BAD), "D1": streams()}) as place:
        answer = await place.chat(stream=True)
        assert place["D1"].seen == []
    assert (answer.status, answer.json) == (status, BAD)
