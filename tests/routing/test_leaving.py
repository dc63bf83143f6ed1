"""A client that leaves stops both legs at once, whatever the phase, and nothing stays counted."""

import asyncio
import gc
import json
import random

import pytest

from routing import exchange
from routing.front import Front
from routing.record import Record
from routing.uvicorn_protocol import OldClients
from tests.routing.scripted import (
    HANDOFF,
    Client,
    Face,
    Records,
    Seen,
    Site,
    Wire,
    chat_answer,
    chat_chunk,
    hangs,
    head,
    prefill_answer,
    prefills,
    site,
    streams,
    until,
)
from tests.waiting import LIMIT_S

FACES: list[Face] = ["direct", "asgi"]
both_faces = pytest.mark.parametrize("face", FACES)
streamed_or_not = pytest.mark.parametrize("stream", [True, False])


async def leave_once(place: Site, engine: str, *, stream: bool) -> None:
    """Sends a chat and leaves when `engine` has it; returns when the router has closed its leg there. Nothing else
    would close it before the idle limit, which is longer than this waits."""
    async with Client(place.port) as client:
        await client.chat(stream=stream)
        await until(lambda: place[engine].seen)
    await until(lambda: place[engine].open == 0)


@both_faces
@streamed_or_not
async def test_leaving_during_prefill_stops_it_and_decode_is_never_called(face: Face, stream: bool) -> None:
    async with site({"P1": hangs, "D1": streams()}, face=face) as place:
        await leave_once(place, "P1", stream=stream)
        record = await place.record()
        assert place["D1"].seen == []
        assert (record.outcome, record.error) == ("cancelled", "the client left")
        assert place.nothing_is_held()


@both_faces
@streamed_or_not
async def test_leaving_while_decode_has_not_answered_stops_it(face: Face, stream: bool) -> None:
    async with site({"P1": prefills, "D1": hangs}, face=face) as place:
        await leave_once(place, "D1", stream=stream)
        record = await place.record()
        assert (record.outcome, record.orphaned_handoff) == ("cancelled", True)


@both_faces
async def test_leaving_mid_stream_stops_decode(face: Face) -> None:
    async def endless(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        while True:
            await wire.event(chat_chunk({"content": "x"}))
            await asyncio.sleep(0.01)

    async with site({"P1": prefills, "D1": endless}, face=face) as place:
        async with Client(place.port) as client:
            await client.chat(stream=True)
            await client.head()
            await client.chunk()
        await until(lambda: place["D1"].open == 0)
        record = await place.record()
        assert (record.outcome, record.orphaned_handoff) == ("cancelled", False)
        assert record.completion_tokens == len(record.gaps_ms) + 1
        assert record.first_token_ms is not None
        assert record.last_token_ms == pytest.approx(record.first_token_ms + sum(record.gaps_ms))
        assert place.nothing_is_held()


@both_faces
async def test_leaving_at_the_end_marker_is_a_complete_answer(face: Face) -> None:
    """As guidellm does: nothing that follows the marker is for a client, the end of the transfer included."""

    async def told_but_not_over(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "x"}))
        await wire.event(chat_chunk({"content": "y"}, "stop"))
        await wire.chunk(b"data: [DONE]\n\n")
        await wire.closed_by_router()

    async with site({"P1": prefills, "D1": told_but_not_over}, face=face) as place:
        async with Client(place.port) as client:
            await client.chat(stream=True)
            await client.head()
            while b"[DONE]" not in await client.chunk():
                pass
        await until(lambda: place["D1"].open == 0)
        record = await place.record()
        assert (record.outcome, record.error, record.completion_tokens) == ("ok", "", 2)
        assert place.nothing_is_held()


class InHalves:
    """A prefill server that sends half of its answer, and at `go` the rest, or breaks off."""

    def __init__(self, *, breaks_off: bool = False) -> None:
        self._begun, self._breaks_off = asyncio.Event(), breaks_off
        self.go = asyncio.Event()

    async def __call__(self, seen: Seen, wire: Wire) -> None:
        data = json.dumps(prefill_answer()).encode()
        await wire.send(head(200, {"content-length": str(len(data))}) + data[:20])
        self._begun.set()
        await self.go.wait()
        wire.reset() if self._breaks_off else await wire.send(data[20:])

    async def is_left(self, place: Site) -> None:
        """A client comes, and goes between the halves; returns when the router knows."""
        async with Client(place.port) as client:
            await client.chat(stream=True, max_tokens=500)
            await self._begun.wait()
        await until(lambda: [one for one in place.router.active if one.client_left])


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long between the halves."""
    monkeypatch.setattr(exchange, "HANDOFF_COMES_WITHIN_S", 60.0)


@both_faces
@pytest.mark.usefixtures("_patient")
async def test_a_handoff_that_no_server_saw_is_delivered_and_ended_there(face: Face) -> None:
    """The client leaves while the prefill server answers: decode fetches the cache for one token, which frees it."""
    prefill = InHalves()
    async with site({"P1": prefill, "D1": streams()}, face=face) as place:
        await prefill.is_left(place)
        prefill.go.set()
        record = await place.record()
        await until(place.nothing_is_held)
        body = place["D1"].seen[0].body
        assert (body["max_tokens"], body["stream"], body["kv_transfer_params"]) == (1, False, HANDOFF)
        assert len(place["D1"].seen) == 1
        assert (record.outcome, record.orphaned_handoff) == ("cancelled", False)


@both_faces
@pytest.mark.usefixtures("_patient")
async def test_nothing_is_tried_again_for_a_client_that_left(face: Face) -> None:
    """It leaves while a prefill server answers, and then that answer breaks off."""
    prefill = InHalves(breaks_off=True)
    async with site({"P1": prefill, "P2": prefill, "D1": streams()}, face=face) as place:
        await prefill.is_left(place)
        prefill.go.set()
        record = await place.record()
        assert len(place["P1"].seen + place["P2"].seen) == 1
        assert place["D1"].seen == []
        assert (record.outcome, record.error, record.attempts) == ("cancelled", "the client left", 1)
        assert place.nothing_is_held()


@both_faces
@streamed_or_not
@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"], ids=["head", "body"])
async def test_a_prefill_server_that_goes_on_answering_is_left_too(face: Face, stream: bool, begun: bytes) -> None:
    """It has begun, so that its hand-off could be freed, but it never ends."""

    async def begins(seen: Seen, wire: Wire) -> None:
        await wire.send(begun)
        await wire.closed_by_router()

    async with site({"P1": begins, "D1": streams()}, face=face) as place:
        await leave_once(place, "P1", stream=stream)
        record = await place.record()
        assert (record.outcome, record.error) == ("cancelled", "the client left")
        assert place["D1"].seen == []
        assert place.nothing_is_held()


@pytest.mark.parametrize("phase", ["prefill", "stream"])
async def test_leaving_with_a_second_request_on_its_way_stops_the_first(phase: str) -> None:
    """Nothing of the connection is read then, its end neither."""

    async def one_token(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "x"}))
        await wire.closed_by_router()

    prefill, last = (hangs, "P1") if phase == "prefill" else (prefills, "D1")
    async with site({"P1": prefill, "D1": one_token}) as place:
        async with Client(place.port) as client:
            await client.chat(stream=True)
            await client.chat(stream=True)
            await until(lambda: place[last].seen)
        await until(lambda: place[last].open == 0)
        record = await place.record()
        assert (record.outcome, record.error) == ("cancelled", "the client left")
        assert [len(place[name].seen) for name in ("P1", "D1")] == [1, int(phase == "stream")]
        await until(place.nothing_is_held)


async def test_a_router_that_ends_waits_for_no_server_that_frees_nothing() -> None:
    """The decode server that should fetch what a client has left hangs, and the lease is longer than the test."""
    prefill = InHalves()
    async with site({"P1": prefill, "D1": hangs}) as place:
        place.publish(servers=[place.server("P1", kv_lease_s=3600), place.server("D1")])
        await prefill.is_left(place)
        prefill.go.set()
        await until(lambda: place["D1"].seen)
        async with asyncio.timeout(LIMIT_S):
            await place.router.aclose()
        await until(lambda: place["D1"].open == 0)


async def test_a_handoff_that_nobody_can_take_counts_as_held_until_its_lease_ends() -> None:
    """The lease gets short when the decode server has the hand-off, and the count is read in the moment in which the
    request is over: so the test may be slow."""
    held_at_end: list[int] = []

    class Looks(Records):
        def finished(self, record: Record) -> None:
            held_at_end.append(place.router.loads()["P1"].handoffs)
            super().finished(record)

    async with site({"P1": prefills, "D1": hangs}, records=Looks()) as place:
        async with Client(place.port) as client:
            await client.chat(stream=True)
            await until(lambda: place["D1"].seen)
            place.publish(servers=[place.server("P1", kv_lease_s=0.4), place.server("D1")])
        assert (await place.record()).orphaned_handoff
        assert held_at_end == [1]
        await until(place.nothing_is_held)
    assert b'unused_handoffs_total{deployment="m",end="orphaned"} 1.0' in place.router.metrics.render()


@both_faces
async def test_many_clients_that_leave_at_any_moment_leave_nothing_counted(face: Face) -> None:
    lot = random.Random(7)

    async def slow_prefill(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(lot.random() * 0.02)
        await wire.json(prefill_answer())

    async def slow_decode(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(lot.random() * 0.02)
        await streams(gap_s=0.005)(seen, wire) if seen.body.get("stream") else await wire.json(chat_answer())

    async def one(place: Site) -> None:
        async with Client(place.port) as client:
            await client.chat(stream=lot.random() < 0.7)
            await asyncio.sleep(lot.random() * 0.06)
            client.writer.transport.abort()

    async with site({"P1": slow_prefill, "P2": slow_prefill, "D1": slow_decode, "D2": slow_decode}, face=face) as place:
        place.publish(servers=[place.server(name, kv_lease_s=0.5) for name in place.engines])
        for _ in range(10):
            await asyncio.gather(*(one(place) for _ in range(30)))
        await place.records.wait(300)
        await until(place.nothing_is_held)
        assert all(used == 0 for used, _, _ in place.router.connections().values())
        assert {record.outcome for record in place.records.all} <= {"ok", "cancelled"}
        assert list(place.router.active) == []


async def test_a_stopped_router_breaks_its_streams_visibly() -> None:
    async with site({"N1": hangs}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await until(lambda: place["N1"].seen)
        await place.router.aclose()
        assert await client.reader.read() == b""
        assert (await place.record()).outcome == "failed"


async def test_requests_that_had_not_begun_when_the_router_is_stopped_are_over_with_it() -> None:
    async with site({"N1": hangs}) as place:
        clients = [await Client(place.port).__aenter__() for _ in range(20)]
        for client in clients:
            await client.chat(stream=True)
        await until(lambda: len(place.router.turnstile) > 0 or len(place["N1"].seen) == 20)
        await place.router.aclose()
        assert list(place.router.active) == []
        assert place.nothing_is_held()
        assert {record.outcome for record in await place.records.wait(20)} == {"failed"}
        for client in clients:
            client.writer.close()


def protocols() -> int:
    return sum(type(found) in (Front, OldClients) for found in gc.get_objects())


WHOLE = b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
BEGINNINGS = {
    "nothing": b"",
    "a head": WHOLE[:40],
    "a body": WHOLE[:-1],
    "a request": WHOLE,
    "a page's": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("sent", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_a_connection_that_ended_is_freed_without_the_collector(sent: bytes) -> None:
    """Each may hold a body of any length that was broken off."""
    async with site({}) as place:
        gc.collect()
        gc.disable()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(sent)
            await until(lambda: protocols() == 1)
            writer.close()
            await until(lambda: protocols() == 0)
        finally:
            gc.enable()
