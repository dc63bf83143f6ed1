"""Under more load than the servers take, the rest is turned away at once, and what runs goes on."""

import asyncio
from collections import Counter

import pytest

from routing import app
from routing.table import Policy
from tests.routing.scripted import Answer, Client, Seen, Wire, after, chat_chunk, hangs, prefills, site, streams, until


async def test_a_burst_over_the_limits_is_shed_and_leaves_no_circuit_open() -> None:
    policy = Policy(max_connections_per_server=10, retries=0)
    slow = streams(gap_s=0.02)
    async with site({"P1": prefills, "P2": prefills, "D1": slow, "D2": slow}, policy) as place:
        answers = await asyncio.gather(*(place.chat(stream=True) for _ in range(200)))
        counts = Counter(answer.status for answer in answers)
        assert set(counts) <= {200, 503}
        assert counts[200] >= 20
        assert all("retry-after" in answer.headers for answer in answers if answer.status == 503)
        assert (await place.chat(stream=True)).status == 200
        assert {view.state for view in place.router.circuits().values()} == {"closed"}
        assert place.nothing_is_held()


async def test_decode_servers_compute_no_prompts_because_prefill_has_much_to_do() -> None:
    async with (
        site({"P1": hangs, "D1": streams(), "D2": streams()}, Policy(max_connections_per_server=1)) as place,
        Client(place.port) as client,
    ):
        await client.chat()
        await until(lambda: place["P1"].seen)
        answer = await place.chat()
        assert place["D1"].seen == place["D2"].seen == []
    assert answer.status == 503
    assert "P1 is at its limit of 1 requests" in answer.json["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0


async def test_plain_servers_take_what_a_busy_prefill_server_cannot() -> None:
    async with (
        site({"P1": hangs, "D1": streams(), "N1": streams()}, Policy(max_connections_per_server=1)) as place,
        Client(place.port) as client,
    ):
        await client.chat()
        await until(lambda: place["P1"].seen)
        answer = await place.chat(stream=True)
    assert (answer.text, answer.headers["x-switchyard-route"]) == ("abc", "fallback")


async def test_a_running_stream_goes_on_while_others_are_turned_away() -> None:
    go = asyncio.Event()

    async def held(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await go.wait()
        await wire.event(chat_chunk({"content": "b"}, "stop"))
        await wire.end_stream()

    async with (
        site({"N1": held}, Policy(max_connections_per_server=1, retries=0)) as place,
        Client(place.port) as client,
    ):
        await client.chat(stream=True)
        await client.head()
        turned_away = await asyncio.gather(*(place.chat() for _ in range(50)))
        assert {answer.status for answer in turned_away} == {503}
        go.set()
        text = b""
        while chunk := await client.chunk():
            text += chunk
        assert b"[DONE]" in text


async def test_a_full_waiting_room_turns_away_at_once_and_who_waits_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_WAITING", 2)
    go = asyncio.Event()
    policy = Policy(max_connections_per_server=1, wait_for_server_s=30, retries=0)
    async with site({"N1": after(go, streams())}, policy) as place:
        asked = [asyncio.create_task(place.chat()) for _ in range(8)]
        refused, waiting = await done_of(asked, 5)
        assert {answer.status for answer in refused} == {503}
        assert all("retry-after" in answer.headers for answer in refused)
        go.set()
        assert [(await answer).status for answer in waiting] == [200] * 3
        await until(place.nothing_is_held)


async def done_of(tasks: list["asyncio.Task[Answer]"], count: int) -> tuple[list[Answer], list["asyncio.Task[Answer]"]]:
    """Once so many are done: their results, and those that are not."""
    await until(lambda: sum(task.done() for task in tasks) >= count)
    return [task.result() for task in tasks if task.done()], [task for task in tasks if not task.done()]


async def test_nothing_the_router_refuses_goes_unrecorded() -> None:
    async with site({"N1": streams()}, Policy(max_connections_per_server=0)) as place:
        answer = await place.chat()
        record = await place.record()
    assert (answer.status, record.status, record.outcome) == (503, 503, "failed")
    assert record.error == answer.json["error"]["message"]
