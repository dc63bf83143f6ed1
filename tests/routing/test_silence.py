"""A server whose engine is stuck is left alone, whatever else of it still answers, and found again when it works."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from routing.backend import SILENT_STREAMS_S, SILENT_WHOLE_S, Backend
from routing.life import TRY_AGAIN_S, Life
from routing.limits import is_too_long
from tests.routing.scripted import (
    Client,
    Face,
    Seen,
    Site,
    Wire,
    answers,
    chat_body,
    chat_chunk,
    hangs,
    lists,
    prefill_answer,
    site,
    streams,
    until,
)

LIMIT_S = 20.0


def is_silent(life: Life, now: float, *, works: bool = True) -> bool:
    return life.is_silent(now, works=works, limit_s=LIMIT_S)


def test_one_that_has_nothing_to_do_is_not_silent() -> None:
    assert not is_silent(Life(), 1e6, works=False)


def test_one_that_brings_nothing_is_silent_after_the_limit_counted_from_when_its_work_began() -> None:
    life = Life()
    life.began_at = 1000.0
    assert not is_silent(life, 1019.0)
    assert is_silent(life, 1021.0)
    life.moved_at = 1020.0
    assert not is_silent(life, 1021.0)


def test_one_that_was_given_up_is_tried_with_one_request_at_a_time_after_a_while() -> None:
    life = Life()
    life.moved_at = life.began_at = 1000.0
    life.given_up_at = 1030.0
    assert is_silent(life, 1031.0, works=False)
    later = 1030.0 + TRY_AGAIN_S + 1
    assert not is_silent(life, later, works=False)
    life.began_at = later
    assert is_silent(life, later)
    life.moved_at = later
    assert not is_silent(life, later)


async def is_stuck(seen: Seen, wire: Wire) -> None:
    """As vLLM whose engine core hangs: the API server answers what it can alone, and begins streams."""
    if seen.path == "/tokenize":
        await wire.json({"count": 2})
    elif seen.path == "/v1/models":
        await lists()(seen, wire)
    elif seen.body.get("temperature", 0) < 0:
        await wire.json({"error": {"message": "temperature must be non-negative"}}, 400)
    else:
        if seen.body.get("stream"):
            await wire.start_stream()
        if seen.path == "/v1/responses":
            await wire.event({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}})
        await wire.closed_by_router()


def backend(place: Site, name: str) -> Backend:
    return place.router.layouts["m"].by_id[name]


async def served_by(place: Site, count: int = 12) -> set[str]:
    """By which servers further requests are served, one after another."""
    return {(await place.chat(stream=True)).headers["x-switchyard-decode"] for _ in range(count)}


def drain(place: Site, name: str) -> None:
    place.publish(servers=[place.server(each, accepting=each != name) for each in place.engines])


async def ask_stuck(place: Site, client: Client, path: str = "/v1/chat/completions") -> None:
    """A streamed request that is sure to go to N1, and to get no further than that."""
    before = place["N1"].open
    drain(place, "N2")
    body = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    await client.send("POST", path, body | {"model": "m", "stream": True})
    await until(lambda: place["N1"].open > before)
    place.publish()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_what_a_stuck_server_still_answers_is_no_sign_of_life(path: str) -> None:
    async with site({"N1": is_stuck, "N2": streams()}) as place, Client(place.port) as one, Client(place.port) as two:
        await ask_stuck(place, one, path)
        life = backend(place, "N1").life
        life.began_at -= SILENT_STREAMS_S + 1
        await ask_stuck(place, two, path)
        drain(place, "N2")
        assert (await place.chat(temperature=-1)).status == 400
        place.publish()
        await is_too_long(backend(place, "N1"), backend(place, "N1"), {"messages": []}, [])
        assert backend(place, "N1").is_silent(time.monotonic())
        assert {name: view.is_silent for name, view in place.router.circuits().items()} == {"N1": True, "N2": False}
        assert await served_by(place) == {"N2"}


async def test_silence_is_remembered_when_all_clients_have_given_up() -> None:
    async with site({"N1": is_stuck, "N2": streams()}) as place:
        async with Client(place.port) as client:
            await ask_stuck(place, client)
            backend(place, "N1").life.began_at -= SILENT_STREAMS_S + 1
        await until(lambda: place["N1"].open == 0)
        assert await served_by(place) == {"N2"}
        backend(place, "N1").life.given_up_at -= TRY_AGAIN_S + 1
        async with Client(place.port) as trial:
            await ask_stuck(place, trial)
            assert await served_by(place) == {"N2"}


async def test_a_server_that_works_again_is_found_by_the_request_that_tries() -> None:
    async with site({"N1": is_stuck, "N2": streams()}) as place:
        async with Client(place.port) as client:
            await ask_stuck(place, client)
            backend(place, "N1").life.began_at -= SILENT_STREAMS_S + 1
        await until(lambda: place["N1"].open == 0)
        place["N1"].script = streams()
        backend(place, "N1").life.given_up_at -= TRY_AGAIN_S + 1
        await served_by(place, 40)
        assert place["N1"].seen[-1].body["stream"]
        assert not backend(place, "N1").is_silent(time.monotonic())
        assert await served_by(place, 40) == {"N1", "N2"}


async def test_a_whole_answer_is_a_sign_of_life_and_a_refusal_is_none() -> None:
    async with site({"N1": answers(200, {"id": "x", "choices": []})}) as place:
        assert (await place.chat()).status == 200
        moved_at = backend(place, "N1").life.moved_at
        assert moved_at > 0
        place["N1"].script = answers(400, {"error": {"message": "no"}})
        assert (await place.chat()).status == 400
        assert backend(place, "N1").life.moved_at == moved_at


async def test_all_silent_servers_are_used_when_there_is_no_other() -> None:
    async with site({"N1": is_stuck}) as place:
        async with Client(place.port) as client:
            await client.chat(stream=True)
            await until(lambda: place["N1"].open == 1)
            backend(place, "N1").life.began_at -= SILENT_STREAMS_S + 1
        await until(lambda: place["N1"].open == 0)
        place["N1"].script = streams()
        assert await served_by(place, 2) == {"N1"}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens", "/v1/chat/completions/render"])
async def test_what_needs_no_engine_neither_shows_life_nor_is_a_trial(path: str) -> None:
    async with site({"N1": answers(200, {"count": 2})}) as place:
        life = backend(place, "N1").life
        life.given_up_at = given_up_at = time.monotonic() - TRY_AGAIN_S - 1
        assert (await place.post(chat_body(), path)).status == 200
        assert (life.moved_at, life.given_up_at) == (0.0, given_up_at)


async def test_a_trial_that_is_refused_is_followed_by_another() -> None:
    async with site({"N1": answers(400, {"error": {"message": "no"}}), "N2": hangs}) as place:
        life = backend(place, "N1").life
        life.given_up_at = time.monotonic() - TRY_AGAIN_S - 1
        drain(place, "N2")
        assert (await place.chat()).status == 400
        assert not backend(place, "N1").is_silent(time.monotonic())


async def test_one_split_request_at_a_time_tries_a_server_that_was_given_up() -> None:
    """Also while its prompt is still computed."""
    may_go_on = asyncio.Event()

    async def takes_its_time(seen: Seen, wire: Wire) -> None:
        await may_go_on.wait()
        await wire.json(prefill_answer())

    async with site({"P1": takes_its_time, "D1": is_stuck, "D2": streams()}) as place, AsyncExitStack() as stack:
        backend(place, "D1").life.given_up_at = time.monotonic() - TRY_AGAIN_S - 1
        clients = [await stack.enter_async_context(Client(place.port)) for _ in range(10)]
        for client in clients:
            await client.chat(stream=True)
        await until(lambda: len(place["P1"].seen) == len(clients))
        may_go_on.set()
        await until(lambda: len(place.records.all) + len(place["D1"].seen) == len(clients))
        assert len(place["D1"].seen) <= 1


@pytest.mark.parametrize("face", ["direct", "asgi"])
async def test_a_client_that_reads_nothing_makes_no_server_silent(face: Face) -> None:
    async def never_ends(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        while True:
            await wire.event(chat_chunk({"content": "x" * 2000}))

    def will_be_silent() -> bool:
        return n1.is_silent(time.monotonic() + SILENT_STREAMS_S + 1)

    async with site({"N1": never_ends, "N2": streams()}, face=face) as place:
        n1 = backend(place, "N1")
        async with Client(place.port) as client:
            drain(place, "N2")
            await client.chat(stream=True)
            await client.head()
            await client.chunk()
            await until(will_be_silent)
            client.transport.pause_reading()
            await until(lambda: not will_be_silent())
            n1.life.moved_at = n1.life.began_at = 0.0
            async with Client(place.port) as other:
                place["N1"].script = is_stuck
                await ask_stuck(place, other)
                assert not n1.is_silent(time.monotonic())
                assert will_be_silent()
            await until(lambda: place["N1"].open == 1)
            client.transport.resume_reading()
            await until(will_be_silent)
            n1.life.moved_at = n1.life.began_at = 0.0
            client.transport.pause_reading()
            await until(lambda: not will_be_silent())
        await until(lambda: place["N1"].open == 0)
        assert not n1.is_silent(time.monotonic())
        assert n1.life.held == 0


async def test_a_long_answer_that_is_not_streamed_makes_no_server_silent_for_minutes() -> None:
    async with site({"N1": is_stuck, "N2": streams()}) as place, Client(place.port) as one, Client(place.port) as two:
        n1 = backend(place, "N1")
        drain(place, "N2")
        await one.chat()
        await until(lambda: place["N1"].open == 1)
        n1.life.began_at -= SILENT_STREAMS_S + 1
        assert not n1.is_silent(time.monotonic())
        assert n1.is_silent(time.monotonic() + SILENT_WHOLE_S)
        await two.chat(stream=True)
        await until(lambda: place["N1"].open == 2)
        assert not n1.is_silent(time.monotonic())
        assert n1.is_silent(time.monotonic() + SILENT_STREAMS_S + 1)
        two.writer.close()
        await until(lambda: place["N1"].open == 1)
        assert not n1.is_silent(time.monotonic() + SILENT_STREAMS_S + 1)
        assert n1.life.streams == 0
