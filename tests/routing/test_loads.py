"""What is counted on each server: to the last byte, once, and given back on every way out."""

import asyncio
import time

from routing.loads import Load, take, take_handoff
from routing.record import Record
from tests.routing.scripted import (
    Client,
    Seen,
    Wire,
    after,
    chat_chunk,
    prefills,
    resets,
    site,
    streams,
    until,
)


def test_giving_back_twice_counts_once() -> None:
    load = Load()
    taken, handoff = take(load, prompt_tokens=5, streams=1), take_handoff(load)
    for _ in range(3):
        taken.give_back()
        handoff.give_back()
    assert load == Load()


async def test_a_prefill_server_is_free_again_while_its_prompts_are_decoded() -> None:
    more = asyncio.Event()

    async def long(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await more.wait()
        await wire.event(chat_chunk({"content": "b"}, "stop"))
        await wire.end_stream()

    async with site({"P1": prefills, "D1": long}) as place:
        requests = [asyncio.create_task(place.chat(stream=True)) for _ in range(10)]
        await until(lambda: place.router.loads()["D1"].streams == 10)
        await until(lambda: len(place.records.first_tokens) == 10)
        load = place.router.loads()["P1"]
        assert (load.inflight, load.prompt_tokens, load.handoffs) == (0, 0, 0)
        more.set()
        await asyncio.gather(*requests)
        assert place.nothing_is_held()


async def test_a_handoff_counts_on_its_prefill_server_until_the_first_token() -> None:
    fetch = asyncio.Event()
    async with site({"P1": prefills, "D1": after(fetch, streams())}) as place:
        request = asyncio.create_task(place.chat(stream=True))
        await until(lambda: place.router.loads()["P1"].handoffs == 1)
        assert place.router.loads()["P1"].inflight == 0
        fetch.set()
        await request
        assert place.nothing_is_held()


async def test_a_burst_spreads_over_decode_servers_while_its_prompts_are_computed() -> None:
    go = asyncio.Event()
    async with site(
        {"P1": after(go, prefills), "D1": streams(), "D2": streams(), "D3": streams(), "D4": streams()}
    ) as place:
        requests = [asyncio.create_task(place.chat(stream=True)) for _ in range(40)]
        await until(lambda: place.router.loads()["P1"].inflight == 40)
        assert [place.router.loads()[name].inflight for name in ("D1", "D2", "D3", "D4")] == [10, 10, 10, 10]
        go.set()
        await asyncio.gather(*requests)
        assert [len(place[name].seen) for name in ("D1", "D2", "D3", "D4")] == [10, 10, 10, 10]
        assert place.nothing_is_held()


async def test_prompt_tokens_in_flight_are_estimated_from_the_prompts_length() -> None:
    go = asyncio.Event()
    async with site({"P1": after(go, prefills), "D1": streams()}) as place:
        request = asyncio.create_task(place.post({"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}))
        await until(lambda: place.router.loads()["P1"].prompt_tokens > 0)
        assert 900 < place.router.loads()["P1"].prompt_tokens < 1200
        go.set()
        await request


async def test_a_failed_prefill_leaves_nothing_counted() -> None:
    async with site({"P1": resets, "P2": resets, "D1": streams()}) as place:
        for _ in range(5):
            await place.chat(stream=True)
        assert place.nothing_is_held()


async def test_running_requests_show_their_gaps_as_they_grow() -> None:
    step = asyncio.Event()

    async def stepping(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for _ in range(4):
            await wire.event(chat_chunk({"content": "x"}))
            await step.wait()
            step.clear()
        await wire.event(chat_chunk({"content": "."}, "stop"))
        await wire.end_stream()

    async with site({"N1": stepping}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await client.head()
        await until(lambda: place.records.first_tokens)
        record = place.records.first_tokens[0]
        for seen_gaps in range(4):
            await gaps_reach(record, seen_gaps)
            assert [exchange.record for exchange in place.router.active] == [record]
            step.set()
        await place.records.wait()
        assert list(place.router.active) == []


async def gaps_reach(record: Record, count: int) -> None:
    await until(lambda: len(record.gaps_ms) == count)


async def test_fresh_samples_are_taken_and_strangers_ignored() -> None:
    before = time.monotonic()
    async with site({"N1": streams()}) as place:
        place.router.observe("N1", kv_usage=0.4, waiting=1, running=2)
        place.router.observe("gone", kv_usage=0.4)
        sample = place.router.layouts["m"].by_id["N1"].sample
    assert sample is not None
    assert (sample.kv_usage, sample.waiting, sample.running) == (0.4, 1, 2)
    assert before <= sample.at <= time.monotonic()
