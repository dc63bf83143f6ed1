"""Under more load than the servers take, the rest is turned away at once, and what runs goes on."""

import asyncio
from collections import Counter

from routing.table import Policy
from tests.routing.scripted import Client, Seen, Wire, chat_chunk, prefills, site, streams


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


async def test_nothing_the_router_refuses_goes_unrecorded() -> None:
    async with site({"N1": streams()}, Policy(max_connections_per_server=0)) as place:
        answer = await place.chat()
        record = await place.record()
    assert (answer.status, record.status, record.outcome) == (503, 503, "failed")
    assert record.error == answer.json["error"]["message"]
