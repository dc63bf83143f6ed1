"""What each request leaves behind: marks that add up, counts by usage, outcomes; and the same on /metrics."""

import asyncio

import pytest

from tests.routing.scripted import (
    Seen,
    Wire,
    answers,
    chat_chunk,
    prefill_answer,
    prefills,
    site,
    streams,
    until,
    usage_chunk,
)


async def test_the_parts_of_ttft_add_up_to_the_whole() -> None:
    async def slow_prefill(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(0.15)
        await wire.json(prefill_answer())

    async def slow_decode(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(0.1)
        await streams()(seen, wire)

    async with site({"P1": slow_prefill, "D1": slow_decode}) as place:
        await place.chat(stream=True)
        record = await place.record()
    assert record.chosen_ms is not None
    assert record.prefill_sent_ms is not None
    assert record.prefill_answered_ms is not None
    assert record.decode_sent_ms is not None
    assert record.decode_opened_ms is not None
    assert record.first_token_ms is not None
    marks = [record.chosen_ms, record.prefill_sent_ms, record.prefill_answered_ms, record.decode_sent_ms]
    marks += [record.decode_opened_ms, record.first_token_ms]
    assert marks == sorted(marks)
    assert record.prefill_answered_ms - record.prefill_sent_ms >= 149
    assert record.first_token_ms - record.prefill_answered_ms >= 99


async def test_the_first_token_is_not_the_role_nor_a_comment() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"role": "assistant", "content": ""}))
        await wire.chunk(b": ping\n\n")
        await asyncio.sleep(0.2)
        await wire.event(chat_chunk({"content": "x"}, "stop"))
        await wire.end_stream()

    async with site({"N1": script}) as place:
        await place.chat(stream=True)
        record = await place.record()
    assert record.first_token_ms is not None
    assert record.first_token_ms >= 199


@pytest.mark.parametrize("delta", [{"reasoning": "hm"}, {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}])
async def test_reasoning_and_tool_calls_are_first_tokens(delta: dict[str, object]) -> None:
    told = asyncio.Event()

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk(delta))
        await told.wait()
        await wire.event(chat_chunk({"content": "x"}, "stop"))
        await wire.end_stream()

    async with site({"N1": script}) as place:
        request = asyncio.create_task(place.chat(stream=True))
        await until(lambda: place.records.first_tokens)
        told.set()
        await request
        record = await place.record()
    assert record.first_token_ms is not None
    assert len(record.gaps_ms) == 1


async def test_several_tokens_in_a_chunk_are_counted_by_usage() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for text in ("one two three four", " five six seven"):
            await wire.event(chat_chunk({"content": text}))
        await wire.event(chat_chunk({"content": " eight"}, "stop"))
        await wire.event(usage_chunk(5, 8))
        await wire.end_stream()

    async with site({"N1": script}) as place:
        await place.chat(stream=True)
        record = await place.record()
    assert (record.completion_tokens, len(record.gaps_ms)) == (8, 2)


async def test_the_observer_hears_of_the_first_token_and_of_the_end() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        await place.chat(stream=True)
        await place.chat()
        await place.records.wait(2)
    assert len(place.records.first_tokens) == 1
    assert place.records.first_tokens[0] == place.records.all[0]
    assert [record.first_token_ms is None for record in place.records.all] == [False, True]


async def test_metrics_tell_what_the_records_tell() -> None:
    bad = answers(400, {"error": {"message": "no"}})

    async def script(seen: Seen, wire: Wire) -> None:
        await (bad if seen.body.get("bad") else streams())(seen, wire)

    async with site({"P1": prefills, "D1": script}) as place:
        for _ in range(3):
            await place.chat(stream=True)
        await place.chat()
        await place.chat(bad=True)
        text = place.router.metrics.render().decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    by_route = 'deployment="m",route="split"'
    assert lines[f"switchyard_router_time_to_first_token_seconds_count{{{by_route}}}"] == "3.0"
    assert lines[f"switchyard_router_inter_token_latency_seconds_count{{{by_route}}}"] == "6.0"
    assert lines[f"switchyard_router_e2e_request_latency_seconds_count{{{by_route}}}"] == "4.0"
    assert lines['switchyard_router_requests_total{deployment="m",outcome="ok",route="split"}'] == "4.0"
    assert lines['switchyard_router_requests_total{deployment="m",outcome="refused",route="split"}'] == "1.0"
    assert lines['switchyard_router_tokens_total{deployment="m",kind="generation"}'] == "12.0"
    assert lines['switchyard_router_server_inflight{server="P1"}'] == "0.0"
    assert lines['switchyard_router_leg_failures_total{reason="status 400",role="decode",server="D1"}'] == "1.0"
