"""Before the first byte a failure is tried elsewhere, within a budget; after it, never."""

import asyncio
import json

import pytest

from routing.budget import Budget
from routing.table import Policy, Timeouts
from tests.routing.scripted import (
    HANDOFF,
    Client,
    Script,
    Seen,
    Wire,
    after,
    answers,
    chat_chunk,
    hangs,
    prefill_answer,
    prefills,
    resets,
    site,
    streams,
    until,
)
from tests.waiting import LIMIT_S

BOOM = {"error": {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}}


def numbered() -> Script:
    """A prefill server whose hand-offs can be told apart."""
    count = 0

    async def script(seen: Seen, wire: Wire) -> None:
        nonlocal count
        count += 1
        await wire.json(prefill_answer({**HANDOFF, "remote_request_id": f"cmpl-{count}"}))

    return script


@pytest.mark.parametrize("failing", [answers(500, BOOM), answers(503, BOOM), answers(429, BOOM), resets])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failing_prefill_server_is_replaced_by_another(failing: Script, stream: bool) -> None:
    async with site({"P1": failing, "P2": prefills, "D1": streams()}) as place:
        for _ in range(6):
            assert (await place.chat(stream=stream)).status == 200
        records = await place.records.wait(6)
    assert {(record.route, record.prefill_server) for record in records} == {("split", "P2")}


@pytest.mark.parametrize("failing", [answers(500, BOOM), resets])
async def test_without_another_prefill_server_decode_does_it_all(failing: Script) -> None:
    async with site({"P1": failing, "D1": streams()}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
        assert "kv_transfer_params" not in place["D1"].seen[0].body
    assert (answer.text, record.route, record.attempts) == ("abc", "fallback", 2)
    assert record.reason.startswith("fallback: prefill ")
    assert answer.headers["x-switchyard-reason"] == record.reason


async def test_a_plain_server_takes_fallbacks_before_decode() -> None:
    async with site({"P1": resets, "D1": streams(), "N1": streams()}) as place:
        await place.chat(stream=True)
        record = await place.record()
    assert (record.route, record.decode_server) == ("fallback", "N1")


@pytest.mark.parametrize("failing", [answers(500, BOOM), resets])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failing_decode_server_is_replaced_with_a_fresh_handoff(failing: Script, stream: bool) -> None:
    async with site({"P1": numbered(), "D1": failing, "D2": streams()}) as place:
        for _ in range(4):
            assert (await place.chat(stream=stream)).status == 200
        used = [seen.body["kv_transfer_params"]["remote_request_id"] for seen in place["D1"].seen + place["D2"].seen]
    assert len(used) == len(set(used))


async def test_the_only_decode_server_is_asked_once_more_without_the_handoff() -> None:
    async def fails_with_handoff(seen: Seen, wire: Wire) -> None:
        await (answers(500, BOOM) if "kv_transfer_params" in seen.body else streams())(seen, wire)

    async with site({"P1": prefills, "D1": fails_with_handoff}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
        assert len(place["P1"].seen) == 1
    assert (answer.text, record.route) == ("abc", "fallback")
    assert record.reason == "fallback: decode 500"


async def test_nothing_is_tried_again_once_a_byte_went_out() -> None:
    async def two_then_reset(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await wire.event(chat_chunk({"content": "b"}))
        await asyncio.sleep(0.05)
        wire.reset()

    async with site({"P1": prefills, "D1": two_then_reset, "D2": two_then_reset}) as place:
        answer = await place.chat(stream=True)
        assert len(place["D1"].seen + place["D2"].seen) == 1
    assert answer.text == "ab"
    assert "error" in answer.events[-2]


async def test_an_unstreamed_answer_that_was_cut_off_is_tried_again() -> None:
    async def half(seen: Seen, wire: Wire) -> None:
        await wire.send(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"half": ')
        wire.reset()

    async with site({"N1": half, "N2": streams()}) as place:
        for _ in range(4):
            answer = await place.chat()
            assert answer.json["choices"][0]["message"]["content"] == "abc"


async def test_attempts_are_limited_by_the_policy() -> None:
    async with site({f"N{n}": answers(500, BOOM) for n in range(6)}, Policy(retries=2)) as place:
        answer = await place.chat()
        record = await place.record()
        assert sum(len(engine.seen) for engine in place.engines.values()) == 3
    assert (answer.status, record.attempts) == (500, 3)


async def test_a_prefill_server_that_hands_nothing_over_leaves_decode_to_do_it_all() -> None:
    async def nothing(seen: Seen, wire: Wire) -> None:
        await wire.json(prefill_answer(None))

    async with site({"P1": nothing, "D1": streams()}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
        assert "kv_transfer_params" not in place["D1"].seen[0].body
    assert (answer.status, record.route) == (200, "fallback")
    assert record.reason == "fallback: P1 handed nothing over"


NOT_HELD = {"error": {"message": "Cache miss for image at index 0 but data is not provided.", "code": 400}}
NAMED = [{"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": "the tank"}]}]


async def test_a_picture_whose_name_the_prefill_server_does_not_know_is_left_to_decode() -> None:
    async with site({"P1": answers(400, NOT_HELD), "D1": streams()}) as place:
        answer = await place.chat(messages=NAMED)
        record = await place.record()
        assert "kv_transfer_params" not in place["D1"].seen[0].body
    assert (answer.status, record.attempts) == (200, 1)
    assert record.reason == "fallback: P1 does not hold what a name stands for"


async def test_a_picture_whose_name_no_server_knows_is_refused_in_the_engines_words() -> None:
    async with site({"P1": answers(400, NOT_HELD), "D1": answers(400, NOT_HELD)}) as place:
        answer = await place.chat(messages=NAMED)
    assert (answer.status, answer.json) == (400, NOT_HELD)


@pytest.mark.parametrize("ids", [[], [[]], [[], []], [1, 2], "12", [["a"], 2], {"0": [1]}], ids=str)
async def test_a_handoff_that_would_end_a_decode_engine_goes_nowhere(ids: object) -> None:
    async def odd(seen: Seen, wire: Wire) -> None:
        answer = prefill_answer()
        await wire.json({**answer, "kv_transfer_params": {**answer["kv_transfer_params"], "remote_block_ids": ids}})

    async with site({"P1": odd, "D1": streams()}) as place:
        assert (await place.chat()).status == 200
        record = await place.record()
        assert (record.route, record.reason) == ("fallback", "fallback: P1 handed nothing over")
        assert "kv_transfer_params" not in place["D1"].seen[0].body


async def test_without_prefill_servers_the_policy_decides() -> None:
    async with site({"D1": streams()}) as place:
        assert (await place.chat(stream=True)).headers["x-switchyard-route"] == "fallback"
        place.publish(Policy(when_no_pair="refuse"))
        answer = await place.chat(stream=True)
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert "no prefill server is there" in answer.json["error"]["message"]


async def test_without_a_verified_pair_the_policy_decides() -> None:
    async with site({"P1": prefills, "D1": streams()}, Policy(when_no_pair="refuse"), pairs=frozenset()) as place:
        refused = await place.chat(stream=True)
        place.publish(Policy(when_no_pair="refuse"), pairs=frozenset({("P1", "D1")}))
        served = await place.chat(stream=True)
    assert (refused.status, served.status) == (503, 200)
    assert "pair" in refused.json["error"]["message"]


async def test_a_handoff_near_the_end_of_its_lease_is_prefilled_again() -> None:
    """A lease of nothing is over at once, so no hand-off is ever used."""
    async with site({"P1": prefills, "D1": streams()}) as place:
        place.publish(servers=[place.server("P1", kv_lease_s=0.0), place.server("D1")])
        answer = await place.chat(stream=True)
        record = await place.record()
        assert place["D1"].seen == []
        assert len(place["P1"].seen) == 3
    assert answer.status == 502
    assert "too near its lease" in record.error


async def test_a_first_byte_limit_is_named_and_can_be_off() -> None:
    async def slow(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(0.3)
        await streams()(seen, wire)

    limited = Policy(retries=0, timeouts=Timeouts(first_byte_s=0.1))
    async with site({"N1": slow}, limited) as place:
        answer = await place.chat()
        place.publish(Policy())
        unlimited = await place.chat()
    assert (answer.status, unlimited.status) == (504, 200)
    assert "first-byte limit of 0.1 s" in answer.json["error"]["message"]


async def test_an_idle_limit_is_named_in_the_stream() -> None:
    async def stalls(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await wire.closed_by_router()

    async with site({"N1": stalls}, Policy(timeouts=Timeouts(idle_s=0.15))) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert "idle limit of 0.15 s" in answer.events[-2]["error"]["message"]
    assert record.outcome == "failed"


async def test_an_idle_limit_holds_for_unstreamed_answers() -> None:
    async def stalls(seen: Seen, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{")
        await wire.closed_by_router()

    async with site({"N1": stalls}, Policy(retries=0, timeouts=Timeouts(idle_s=0.15))) as place:
        answer = await place.chat()
    assert answer.status == 504
    assert "idle limit of 0.15 s" in answer.json["error"]["message"]


@pytest.mark.parametrize("failing", ["P1", "D1"])
async def test_an_idle_limit_holds_for_the_words_of_a_failure(failing: str) -> None:
    async def stalls(seen: Seen, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 500 Failed\r\ncontent-length: 100\r\n\r\n{")
        await wire.closed_by_router()

    scripts: dict[str, Script] = {"P1": prefills, "D1": streams()} | {failing: stalls}
    policy = Policy(retries=0, when_no_pair="refuse", timeouts=Timeouts(idle_s=0.15))
    async with site(scripts, policy) as place:
        answer = await place.chat()
    assert answer.status == 504
    assert "idle limit of 0.15 s" in answer.json["error"]["message"]


async def test_a_total_limit_is_named() -> None:
    async with site({"N1": hangs}, Policy(timeouts=Timeouts(total_s=0.15))) as place:
        answer = await place.chat(stream=True)
    assert answer.status == 504
    assert "total limit of 0.15 s" in answer.json["error"]["message"]


async def test_comments_keep_a_silent_connection_alive_and_errors_come_in_band() -> None:
    go = asyncio.Event()
    refusal = {"error": {"message": "prompt too long", "type": "BadRequestError", "code": 400}}
    slow_then_refuses = after(go, answers(400, refusal))
    policy = Policy(comment_every_s=0.05)
    async with site({"P1": slow_then_refuses, "D1": slow_then_refuses}, policy) as place, Client(place.port) as client:
        await client.chat(stream=True)
        status, headers = await client.head()
        assert [await client.chunk() for _ in range(3)] == [b": waiting\n\n"] * 3
        go.set()
        while (chunk := await client.chunk()) == b": waiting\n\n":
            pass
        record = await place.record()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    error = {"message": "prompt too long", "type": "BadRequestError", "param": None, "code": 400}
    assert json.loads(chunk.removeprefix(b"data: ").partition(b"\n")[0])["error"] == error
    assert record.outcome == "refused"


async def test_comments_stop_at_the_first_token() -> None:
    async def slow(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(0.15)
        await streams(gap_s=0.1)(seen, wire)

    async with site({"N1": slow}, Policy(comment_every_s=0.05)) as place:
        answer = await place.chat(stream=True)
    assert answer.text == "abc"
    assert b": waiting" not in answer.body.partition(b"data: ")[2]


async def test_retries_are_a_part_of_the_traffic() -> None:
    budget = Budget(reserve=2)
    assert [budget.withdraw() for _ in range(3)] == [True, True, False]
    for _ in range(5):
        budget.deposit()
    assert [budget.withdraw() for _ in range(2)] == [True, False]


async def test_a_pool_that_starts_is_waited_for() -> None:
    async with site({"P1": prefills, "D1": streams()}, Policy(wait_for_server_s=LIMIT_S), servers=[]) as place:
        request = asyncio.create_task(place.chat(stream=True))
        await asyncio.sleep(0.1)
        assert not request.done()
        place.publish(Policy(wait_for_server_s=LIMIT_S))
        assert (await request).text == "abc"


async def test_who_has_waited_is_tried_again_among_the_servers_that_came() -> None:
    policy = Policy(wait_for_server_s=LIMIT_S)
    async with site({"N1": resets, "N2": streams()}, policy, servers=[]) as place:
        while not place["N1"].seen:  # Which of two idle ones is asked is drawn by lot.
            place.publish(policy, [])
            request = asyncio.create_task(place.chat(stream=True))
            await until(lambda: place.router.active)
            await asyncio.sleep(0.02)
            place.publish(policy)
            assert (await request).text == "abc"


async def test_waiting_ends_with_503_and_when_to_come_back() -> None:
    async with site({"D1": streams()}, Policy(wait_for_server_s=0.1), servers=[], starting=True) as place:
        answer = await place.chat(stream=True)
    assert answer.status == 503
    assert "retry-after" in answer.headers
    assert "A server is starting" in answer.json["error"]["message"]
