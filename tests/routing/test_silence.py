"""A server whose engine is stuck is left alone, whatever else of it still answers, and found again when it works."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from routing.backend import Backend
from routing.life import SILENT_STREAMS_S, SILENT_WHOLE_S, TRY_AGAIN_S, Life
from routing.limits import is_too_long
from tests.routing.scripted import (
    Client,
    Face,
    Seen,
    Site,
    Wire,
    after,
    answers,
    chat_body,
    chat_chunk,
    hangs,
    lists,
    prefills,
    site,
    streams,
    until,
)

NOW = 1000.0


def worked(life: Life, *spells: tuple[float, float], shows_tokens: bool = True) -> None:
    """Each from then till then, and given up."""
    for began_at, ended_at in spells:
        begin(life, began_at, shows_tokens=shows_tokens)
        life.end(ended_at, shows_tokens=shows_tokens)


def begin(life: Life, at: float, *, shows_tokens: bool = True) -> None:
    life.begin(shows_tokens=shows_tokens)
    for work in (life.work, life.streams):
        if work.under_way == 1:
            work.counted_at = at


def test_one_that_has_nothing_to_do_is_not_silent() -> None:
    life = Life()
    assert not life.is_silent(1e6)
    worked(life, (NOW, NOW + 15))
    assert not life.is_silent(1e6)


def test_one_that_brings_nothing_is_silent_after_the_limit_counted_from_when_its_work_began() -> None:
    life = Life()
    begin(life, NOW)
    assert not life.is_silent(NOW + 19)
    assert life.is_silent(NOW + 21)
    life.moved_at = NOW + 20
    assert not life.is_silent(NOW + 21)


@pytest.mark.parametrize(("shows_tokens", "limit_s"), [(True, SILENT_STREAMS_S), (False, SILENT_WHOLE_S)])
def test_requests_that_come_one_by_one_and_are_given_up_are_added_up(shows_tokens: bool, limit_s: float) -> None:
    """Without the hours between them."""
    life, hour_s = Life(), 3600.0
    most_s = limit_s * 0.4
    worked(life, (NOW, NOW + most_s), (NOW + hour_s, NOW + hour_s + most_s), shows_tokens=shows_tokens)
    third = NOW + 2 * hour_s
    begin(life, third, shows_tokens=shows_tokens)
    assert not life.is_silent(third + limit_s * 0.1)
    assert life.is_silent(third + limit_s * 0.3)
    life.end(third + limit_s * 0.3, shows_tokens=shows_tokens)
    assert life.is_silent(third + limit_s * 0.3 + TRY_AGAIN_S - 1)


@pytest.mark.parametrize("while_it_works", [True, False])
def test_a_sign_of_life_ends_the_sum(while_it_works: bool) -> None:
    """Whatever showed it: a whole answer may come while no stream is there."""
    life = Life()
    worked(life, (NOW, NOW + 19))
    if while_it_works:
        begin(life, NOW + 100)
    life.moved_at = NOW + 101
    if not while_it_works:
        begin(life, NOW + 101)
    assert not life.is_silent(NOW + 120)
    assert life.is_silent(NOW + 122)


def test_one_that_works_well_is_not_silent_however_long_its_clients_stay_away() -> None:
    life = Life()
    for hour in range(100):
        at = NOW + hour * 3600
        begin(life, at)
        assert not life.is_silent(at + 10)
        life.moved_at = at + 10
        life.end(at + 11, shows_tokens=True)
    assert not life.is_silent(1e6)


def test_refusals_are_added_to_nothing() -> None:
    life = Life()
    for spell in range(100):
        begin(life, NOW + spell * 100)
        assert not life.is_silent(NOW + spell * 100 + 19)
        life.drop(shows_tokens=True)


def test_time_in_which_clients_read_nothing_is_not_added() -> None:
    life = Life()
    begin(life, NOW)
    life.hold(NOW + 10, shows_tokens=True)
    assert not life.is_silent(1e6)
    life.let_go(shows_tokens=True)
    life.work.counted_at = life.streams.counted_at = NOW + 600
    assert not life.is_silent(NOW + 609)
    assert life.is_silent(NOW + 611)


def test_one_that_was_given_up_is_tried_with_one_request_at_a_time_after_a_while() -> None:
    life = Life()
    worked(life, (NOW, NOW + 30))
    assert life.is_silent(NOW + 31)
    later = NOW + 30 + TRY_AGAIN_S + 1
    assert not life.is_silent(later)
    begin(life, later)
    assert life.is_silent(later)
    life.moved_at = later
    assert not life.is_silent(later)


def grow_old(life: Life, by_s: float = SILENT_STREAMS_S + 1) -> None:
    """As if what is under way had begun earlier."""
    life.work.counted_at -= by_s
    life.streams.counted_at -= by_s


def lose_signs(life: Life) -> None:
    life.moved_at = life.work.counted_at = life.streams.counted_at = 0.0


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


async def give_up(place: Site) -> None:
    """The only client of N1 leaves after N1 has fallen silent."""
    async with Client(place.port) as client:
        await ask_stuck(place, client)
        grow_old(backend(place, "N1").life)
    await until(lambda: place["N1"].open == 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_what_a_stuck_server_still_answers_is_no_sign_of_life(path: str) -> None:
    async with site({"N1": is_stuck, "N2": streams()}) as place, Client(place.port) as one, Client(place.port) as two:
        await ask_stuck(place, one, path)
        grow_old(backend(place, "N1").life)
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
        await give_up(place)
        assert await served_by(place) == {"N2"}
        backend(place, "N1").life.given_up_at -= TRY_AGAIN_S + 1
        async with Client(place.port) as trial:
            await ask_stuck(place, trial)
            assert await served_by(place) == {"N2"}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stuck_server_is_found_though_each_client_gives_it_up_in_time(stream: bool) -> None:
    """Also where it sends no head, as before a whole answer: then its connection is gone before the request is over."""
    limit_s = SILENT_STREAMS_S if stream else SILENT_WHOLE_S
    async with site({"N1": is_stuck, "N2": streams()}) as place:
        drain(place, "N2")
        for spell in range(3):
            async with Client(place.port) as client:
                await client.chat(stream=stream)
                await until(lambda: place["N1"].open == 1)
                grow_old(backend(place, "N1").life, limit_s * 0.4)
            await until(lambda: place["N1"].open == 0)
            assert backend(place, "N1").is_silent(time.monotonic()) is (spell == 2)
        place.publish()
        assert await served_by(place) == {"N2"}


async def test_questions_of_our_own_are_no_work_in_vain() -> None:
    async with site({"N1": is_stuck}) as place:
        life = backend(place, "N1").life
        await place.get("/v1/models")
        await is_too_long(backend(place, "N1"), backend(place, "N1"), {"messages": []}, [])
        assert (life.work.under_way, life.work.counted_at) == (0, 0.0)


async def test_a_server_that_works_again_is_found_by_the_request_that_tries() -> None:
    async with site({"N1": is_stuck, "N2": streams()}) as place:
        await give_up(place)
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
            grow_old(backend(place, "N1").life)
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
    async with (
        site({"P1": after(may_go_on, prefills), "D1": is_stuck, "D2": streams()}) as place,
        AsyncExitStack() as stack,
    ):
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
            lose_signs(n1.life)
            async with Client(place.port) as other:
                place["N1"].script = is_stuck
                await ask_stuck(place, other)
                assert not n1.is_silent(time.monotonic())
                assert will_be_silent()
            await until(lambda: place["N1"].open == 1)
            client.transport.resume_reading()
            await until(will_be_silent)
            lose_signs(n1.life)
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
        grow_old(n1.life)
        assert not n1.is_silent(time.monotonic())
        assert n1.is_silent(time.monotonic() + SILENT_WHOLE_S)
        await two.chat(stream=True)
        await until(lambda: place["N1"].open == 2)
        assert not n1.is_silent(time.monotonic())
        assert n1.is_silent(time.monotonic() + SILENT_STREAMS_S + 1)
        two.writer.close()
        await until(lambda: place["N1"].open == 1)
        assert not n1.is_silent(time.monotonic() + SILENT_STREAMS_S + 1)
        assert n1.life.streams.under_way == 0
