"""Errors of servers: passed on as they came, once, with the status known before ours is sent."""

import pytest

from routing.circuit import FAILURES_TO_OPEN
from routing.table import Policy
from tests.routing.scripted import (
    SSE,
    Face,
    Json,
    Script,
    Seen,
    Wire,
    answers,
    chat_chunk,
    event,
    head,
    prefills,
    resets,
    site,
    streams,
)

BAD = {"error": {"message": "temperature must be non-negative, got -1.0.", "type": "BadRequestError", "code": 400}}


@pytest.mark.parametrize("face", ["direct", "asgi"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_decode_servers_4xx_is_the_clients(status: int, stream: bool, face: Face) -> None:
    async with site({"P1": prefills, "D1": answers(status, BAD, {"x-detail": "7"})}, face=face) as place:
        answer = await place.chat(stream=stream)
        record = await place.record()
        assert len(place["D1"].seen) == 1
    assert (answer.status, answer.json, answer.headers["x-detail"]) == (status, BAD, "7")
    assert (record.outcome, record.attempts) == ("refused", 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_decode_servers_500_is_passed_on_when_every_try_fails(stream: bool) -> None:
    broken = {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
    async with site({"P1": prefills, "D1": answers(500, broken)}) as place:
        answer = await place.chat(stream=stream)
        record = await place.record()
    assert (answer.status, answer.json) == (500, broken)
    assert record.outcome == "failed"


async def test_a_prefill_servers_400_is_passed_on_once_and_decode_is_never_called() -> None:
    async with site({"P1": answers(400, BAD), "P2": answers(400, BAD), "D1": streams()}) as place:
        answer = await place.chat()
        assert len(place["P1"].seen) + len(place["P2"].seen) == 1
        assert place["D1"].seen == []
    assert (answer.status, answer.json) == (400, BAD)


async def test_a_string_as_error_is_passed_on_as_it_is() -> None:
    async with site({"N1": answers(400, {"error": "Unusual"})}) as place:
        answer = await place.chat()
    assert (answer.status, answer.json) == (400, {"error": "Unusual"})


async def test_a_strict_deployment_ends_with_the_prefill_servers_error() -> None:
    broken = {"error": {"message": "boom"}}
    async with site({"P1": answers(500, broken), "D1": streams()}, Policy(when_no_pair="refuse")) as place:
        answer = await place.chat(stream=True)
        assert place["D1"].seen == []
    assert (answer.status, answer.json) == (500, broken)


async def test_a_strict_deployment_ends_with_502_when_the_prefill_server_resets() -> None:
    async with site({"P1": resets, "D1": streams()}, Policy(when_no_pair="refuse")) as place:
        answer = await place.chat(stream=True)
        assert place["D1"].seen == []
    assert answer.status == 502
    assert "P1 closed the connection without answering" in answer.json["error"]["message"]


async def test_headers_describe_the_bytes_that_are_sent() -> None:
    """Servers are asked for unencoded answers; one that encodes all the same is passed on labelled as it came."""
    packed = b"\x1f\x8b not really gzip"

    async def script(seen: Seen, wire: Wire) -> None:
        assert "accept-encoding" not in seen.headers
        await wire.json(packed, headers={"content-encoding": "gzip"})

    async with site({"N1": script}) as place:
        answer = await place.post({"model": "m", "messages": []}, headers={"accept-encoding": "gzip, br"})
    assert (answer.body, answer.headers["content-encoding"]) == (packed, "gzip")
    assert answer.headers["content-length"] == str(len(packed))


async def test_a_server_that_refuses_the_routers_key_is_named_and_kept() -> None:
    async with site({"N1": answers(401, {"error": "Unauthorized"})}) as place:
        answer = await place.chat()
        circuits = place.router.circuits()
    assert answer.status == 502
    assert "N1 refused the router's own key" in answer.json["error"]["message"]
    assert circuits["N1"].failures == 0


async def test_a_busy_server_is_not_blamed_and_its_answer_passes_when_all_are_busy() -> None:
    busy = {"error": {"message": "queue full"}}
    async with site({"N1": answers(429, busy, {"retry-after": "7"})}) as place:
        answer = await place.chat()
        circuits = place.router.circuits()
    assert (answer.status, answer.headers["retry-after"], answer.json) == (429, "7", busy)
    assert circuits["N1"].failures == 0


async def test_what_is_not_http_is_a_502() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.send(b"SSH-2.0-OpenSSH\r\n\r\n")

    async with site({"N1": script}) as place:
        answer = await place.chat()
    assert answer.status == 502
    assert "not HTTP" in answer.json["error"]["message"]


REFUSED_IN_STREAM = {
    "error": {
        "message": "Requested sample logprobs of 99, which is greater than max allowed: 20",
        "type": "BadRequestError",
        "param": "logprobs",
        "code": 400,
    }
}


async def refuses_in_its_stream(seen: Seen, wire: Wire) -> None:
    """As an engine does that looks at some fields only when the stream has begun."""
    await wire.start_stream()
    if seen.body.get("begins"):
        await wire.event(chat_chunk({"role": "assistant", "content": ""}))
    await wire.event(REFUSED_IN_STREAM)
    await wire.end_stream()


@pytest.mark.parametrize("face", ["direct", "asgi"])
@pytest.mark.parametrize("begins", [True, False])
async def test_what_an_engine_refuses_in_its_stream_passes_as_it_came(begins: bool, face: Face) -> None:
    async with site({"P1": prefills, "D1": refuses_in_its_stream, "D2": refuses_in_its_stream}, face=face) as place:
        answer = await place.chat(stream=True, begins=begins)
        record = await place.record()
        assert len(place["D1"].seen) + len(place["D2"].seen) == 1
    first = event(chat_chunk({"role": "assistant", "content": ""})) if begins else b""
    assert answer.status == 200
    assert answer.body == first + event(REFUSED_IN_STREAM) + b"data: [DONE]\n\n"
    assert (record.outcome, record.attempts, record.orphaned_handoff) == ("refused", 1, True)
    assert "greater than max allowed" in record.error


async def test_what_is_refused_in_streams_leaves_every_circuit_closed() -> None:
    async with site({"P1": prefills, "D1": refuses_in_its_stream}) as place:
        for _ in range(FAILURES_TO_OPEN * 2):
            await place.chat(stream=True)
        assert {view.state for view in place.router.circuits().values()} == {"closed"}
        assert (await place.chat(stream=True)).headers["x-switchyard-route"] == "split"


FAILED_IN_STREAM = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
ROLE = chat_chunk({"role": "assistant", "content": ""})


async def fails_in_its_stream(seen: Seen, wire: Wire) -> None:
    await wire.send(head(200, {"content-type": SSE, "transfer-encoding": "chunked", "x-detail": "7"}))
    await wire.event(ROLE)
    await wire.event(FAILED_IN_STREAM)
    await wire.end_stream()


@pytest.mark.parametrize("face", ["direct", "asgi"])
@pytest.mark.parametrize("comment_every_s", [None, 0.01])
async def test_what_every_server_says_in_its_stream_passes_as_the_last_one_said_it(
    comment_every_s: float | None, face: Face
) -> None:
    scripts: dict[str, Script] = {"P1": prefills, "D1": fails_in_its_stream, "D2": fails_in_its_stream}
    async with site(scripts, Policy(comment_every_s=comment_every_s), face=face) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
        assert len(place["D1"].seen + place["D2"].seen) == 3
    said = event(ROLE) + event(FAILED_IN_STREAM) + b"data: [DONE]\n\n"
    assert (answer.status, answer.whole, answer.body.replace(b": waiting\n\n", b"")) == (200, True, said)
    assert comment_every_s or answer.headers["x-detail"] == "7"
    assert (record.outcome, record.attempts, record.status) == ("failed", 3, 200)
    assert "EngineCore encountered an issue" in record.error


async def test_a_server_that_failed_in_its_stream_is_replaced_by_another_and_blamed() -> None:
    async with site({"N1": fails_in_its_stream, "N2": streams()}) as place:
        while not place["N1"].seen:
            answer = await place.chat(stream=True)
            assert answer.text == "abc"
        assert place.router.circuits()["N1"].failures == 1


async def test_a_stream_that_fails_with_a_handoff_only_is_done_without_one() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await (fails_in_its_stream if "kv_transfer_params" in seen.body else streams())(seen, wire)

    async with site({"P1": prefills, "D1": script}) as place:
        assert (await place.chat(stream=True)).text == "abc"
        record = await place.record()
    assert record.reason == "fallback: decode failed in its stream"


async def test_what_fails_in_the_stream_of_a_response_passes_as_it_came() -> None:
    made: Json = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
    failed: Json = {"type": "response.failed", "response": {"id": "resp_1", "error": {"message": "it broke"}}}

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for payload in (made, failed):
            await wire.event(payload)
        await wire.end_stream(done=False)

    async with site({"N1": script}) as place:
        answer = await place.post({"model": "m", "input": "hi", "stream": True}, "/v1/responses")
        record = await place.record()
    assert (answer.status, answer.body) == (200, event(made) + event(failed))
    assert (record.outcome, record.attempts) == ("failed", 1)
