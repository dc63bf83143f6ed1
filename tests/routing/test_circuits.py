"""A server that fails is left alone and tried again by itself; what is not its fault is not held against it."""

import asyncio
from functools import partial

import pytest

from routing.backend import Backend
from routing.circuit import FAILURES_TO_OPEN, FIRST_PAUSE_S, Circuit
from routing.errors import ConnectFailed, TimedOut
from routing.leg import Leg
from routing.table import Policy, Timeouts
from tests.routing.scripted import (
    Answer,
    Client,
    Seen,
    Site,
    Wire,
    answers,
    chat_chunk,
    hangs,
    lists,
    prefills,
    resets,
    site,
    streams,
    until,
)
from tests.waiting import LIMIT_S

BAD = {"error": {"message": "too long"}}
BOOM = {"error": {"message": "boom"}}


def opened(now: float = 0.0) -> Circuit:
    circuit = Circuit()
    for _ in range(FAILURES_TO_OPEN):
        circuit.fail(now, "boom")
    return circuit


def test_some_failures_in_a_row_open_it() -> None:
    circuit = Circuit()
    for _ in range(FAILURES_TO_OPEN - 1):
        circuit.fail(0.0, "boom")
    assert circuit.allows(0.0)
    circuit.fail(0.0, "boom")
    assert circuit.state(0.0) == "open"
    assert not circuit.allows(0.5)


def test_a_success_in_between_starts_the_count_anew() -> None:
    circuit = Circuit()
    for _ in range(FAILURES_TO_OPEN * 3):
        circuit.fail(0.0, "boom")
        circuit.succeed()
    assert circuit.allows(0.0)


def test_after_a_pause_one_request_probes() -> None:
    circuit = opened()
    assert circuit.allows(1.0)
    assert circuit.begin()
    assert not circuit.allows(1.0)


def test_a_probe_that_succeeds_closes_it() -> None:
    circuit = opened()
    circuit.begin()
    circuit.succeed()
    assert circuit.state(1.0) == "closed"


def test_a_probe_that_fails_doubles_the_pause_up_to_a_limit() -> None:
    circuit, now, pauses = opened(), 0.0, []
    for _ in range(7):
        now += circuit.retry_in_s(now)
        circuit.begin()
        circuit.fail(now, "boom")
        pauses.append(circuit.retry_in_s(now))
    assert pauses == [2, 4, 8, 15, 15, 15, 15]


def test_a_probe_whose_client_left_lets_the_next_one_probe() -> None:
    circuit = opened()
    circuit.begin()
    circuit.abandon()
    assert circuit.allows(1.0)


def test_failures_of_requests_under_way_do_not_lengthen_the_pause() -> None:
    circuit = opened()
    circuit.fail(0.5, "boom")
    assert circuit.retry_in_s(0.5) == 0.5


async def test_bad_requests_leave_every_circuit_closed() -> None:
    async def by_length(seen: Seen, wire: Wire) -> None:
        await (answers(400, BAD) if seen.body.get("bad") else prefills)(seen, wire)

    async with site({"P1": by_length, "D1": streams()}) as place:
        for _ in range(20):
            assert (await place.chat(bad=True)).status == 400
        assert (await place.chat(stream=True)).headers["x-switchyard-route"] == "split"


@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_engine_cannot_do_leaves_every_circuit_closed(stream: bool) -> None:
    """Its answer to a picture whose `data:` address is not base64."""
    async with site({"P1": answers(501, BAD), "D1": answers(501, BAD)}) as place:
        for _ in range(FAILURES_TO_OPEN * 2):
            answer = await place.chat(stream=stream)
            assert (answer.status, answer.json) == (501, BAD)
        assert {view.state for view in place.router.circuits().values()} == {"closed"}
        assert place["D1"].seen == []


async def test_streams_that_break_before_a_token_leave_the_circuit_closed() -> None:
    """An engine breaks a stream so when it finds its request at fault after the answer's head went out."""

    async def breaks(seen: Seen, wire: Wire) -> None:
        if not seen.body.get("bad"):
            await streams()(seen, wire)
            return
        await wire.start_stream()
        wire.writer.close()

    async with site({"P1": prefills, "D1": breaks}) as place:
        for _ in range(FAILURES_TO_OPEN * 2):
            assert (await place.chat(bad=True, stream=True)).status == 502
        assert place.router.circuits()["D1"].state == "closed"
        assert (await place.chat(stream=True)).headers["x-switchyard-route"] == "split"


PICTURES = {
    "a picture at an address": {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
    "a response's picture": {"type": "input_image", "image_url": "https://127.0.0.1:1/x.png"},
    "a message's picture": {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/x.png"}},
    "a picture in a file": {"type": "image_url", "image_url": {"url": "file:///x.png"}},
}


@pytest.mark.parametrize("part", PICTURES.values(), ids=PICTURES)
async def test_pictures_that_cannot_be_fetched_leave_every_circuit_closed(part: dict[str, object]) -> None:
    """The engine answers them with 500."""
    async with site({"P1": answers(500, BOOM), "D1": answers(500, BOOM)}) as place:
        for _ in range(FAILURES_TO_OPEN * 2):
            assert (await place.chat(messages=[{"role": "user", "content": [part]}])).status == 500
        assert {view.state for view in place.router.circuits().values()} == {"closed"}


def pause(place: Site, name: str, pause_s: float) -> None:
    """How long its circuit stays open. With a long pause the test may be as slow as it likes while it looks."""
    place.router.layouts["m"].by_id[name].circuit.pause_s = pause_s


async def test_pictures_that_are_sent_along_are_no_excuse() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with site({"P1": answers(500, BOOM), "D1": answers(500, BOOM)}) as place:
        pause(place, "P1", 3600)
        for _ in range(FAILURES_TO_OPEN):
            await place.chat(messages=[{"role": "user", "content": [part]}])
        assert place.router.circuits()["P1"].state == "open"


async def test_both_legs_feed_the_circuits() -> None:
    async with site({"P1": answers(500, BOOM), "D1": answers(500, BOOM)}, Policy(retries=1)) as place:
        pause(place, "P1", 3600)
        pause(place, "D1", 3600)
        for _ in range(FAILURES_TO_OPEN):
            await place.chat()
        states = {name: view.state for name, view in place.router.circuits().items()}
        answer = await place.chat()
    assert states == {"P1": "open", "D1": "open"}
    assert (answer.status, answer.json) == (500, BOOM), "by the last resort, in its own words"


async def test_a_server_that_comes_back_is_used_again_by_itself() -> None:
    async with site({"N1": resets}, Policy(retries=0)) as place:
        pause(place, "N1", 3600)
        for _ in range(FAILURES_TO_OPEN):
            await place.chat()
        refused = await place.chat()
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        assert "N1 failed lately" in refused.json["error"]["message"]
        place["N1"].script = streams()
        pause(place, "N1", FIRST_PAUSE_S)
        await until(lambda: place.router.circuits()["N1"].state == "half-open")
        assert (await place.chat()).status == 200
        assert place.router.circuits()["N1"].state == "closed"


async def test_a_server_that_comes_back_with_a_long_stream_serves_others_meanwhile() -> None:
    """The request that probes may be one of minutes; its first token tells enough."""
    async with site({"N1": resets}, Policy(retries=0)) as place, Client(place.port) as client:
        for _ in range(FAILURES_TO_OPEN):
            await place.chat()
        pause(place, "N1", 0.0)
        place["N1"].script = streams(["a"] * 10_000, gap_s=0.05)
        await client.chat(stream=True)
        await until(lambda: place.records.first_tokens)
        place["N1"].script = streams()
        assert (await place.chat()).status == 200
        assert place.router.circuits()["N1"].state == "closed"


async def test_a_question_of_our_own_that_a_server_is_slow_to_answer_says_nothing_about_it() -> None:
    """A busy server's event loop is slow to tell its model card or to count tokens, and streams on."""
    async with site({"N1": hangs}) as place:
        backend = Backend(place.server("N1"), 10)
        for _ in range(FAILURES_TO_OPEN):
            with pytest.raises(TimedOut):
                await ask_aside(backend)
        assert backend.circuit.failures == 0
        backend.pool.retire()
        await place["N1"].stop()
        with pytest.raises(ConnectFailed):
            await ask_aside(backend)
        assert backend.circuit.failures == 1


async def ask_aside(backend: Backend) -> None:
    with Leg(backend, Timeouts(first_byte_s=0.02), is_aside=True) as leg:
        await leg.open("GET", "/v1/models", [], None)


async def test_a_question_of_our_own_does_not_take_the_probes_place() -> None:
    async with site({"N1": lists()}) as place:
        backend = Backend(place.server("N1"), 10)
        for _ in range(FAILURES_TO_OPEN):
            backend.circuit.fail(0.0, "boom")
        await ask_aside(backend)
        assert not backend.circuit.probing
        assert backend.circuit.state(0.0) == "open"
        backend.pool.retire()


async def test_a_server_that_gave_tokens_is_not_blamed_for_a_broken_stream() -> None:
    async def breaks(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await wire.end_stream()

    async with site({"N1": breaks}) as place:
        for _ in range(FAILURES_TO_OPEN + 2):
            assert (await place.chat(stream=True)).status == 200
        assert place.router.circuits()["N1"].failures == 0


async def test_clients_that_leave_say_nothing_about_the_server() -> None:
    async def slow(seen: Seen, wire: Wire) -> None:
        await wire.closed_by_router()

    async with site({"N1": slow}) as place:
        for count in range(1, FAILURES_TO_OPEN + 3):
            async with Client(place.port) as client:
                await client.chat(stream=True)
                await until(lambda: place["N1"].open == 1)
            await place.records.wait(count)
            await until(lambda: place["N1"].open == 0)
        assert place.router.circuits()["N1"].failures == 0


async def test_a_slow_server_does_not_slow_the_others() -> None:
    async def hangs(seen: Seen, wire: Wire) -> None:
        await wire.closed_by_router()

    async with site({"N1": hangs, "N2": streams()}) as place:
        while not place["N1"].seen:  # Which of two idle ones is asked is drawn by lot.
            asked = asyncio.create_task(place.chat(stream=True))
            await until(partial(is_stuck_or_done, place, asked))
        for _ in range(20):
            assert (await place.chat(stream=True)).headers["x-switchyard-decode"] == "N2"
        asked.cancel()


def is_stuck_or_done(place: Site, asked: "asyncio.Task[Answer]") -> bool:
    return bool(place["N1"].seen) or asked.done()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_answers_with_errors_is_the_last_resort(stream: bool) -> None:
    """What one client sends makes the engine fail; it must not take the only server from the others."""

    async def fails_for_some(seen: Seen, wire: Wire) -> None:
        if seen.body.get("user") == "odd":
            await wire.json(BOOM, 500)
        else:
            await (streams() if stream else answers(200, {"id": "x", "choices": []}))(seen, wire)

    async with site({"N1": fails_for_some}) as place:
        for _ in range(FAILURES_TO_OPEN + 1):
            assert (await place.chat(user="odd", stream=stream)).status == 500
        assert place.router.circuits()["N1"].state == "open"
        assert (await place.chat(stream=stream)).status == 200
        assert place.router.circuits()["N1"].state == "closed"


@pytest.mark.parametrize("stream", [False, True])
async def test_while_a_restarted_server_answers_its_probe_others_are_let_in(stream: bool) -> None:
    """The answer may take minutes, and it was the connection alone that failed."""
    async with site({"N1": hangs}, Policy(retries=0)) as place, Client(place.port) as client:
        circuit = place.router.layouts["m"].by_id["N1"].circuit
        for _ in range(FAILURES_TO_OPEN):
            circuit.fail(0.0, "takes no connection", how="refused")
        await client.chat(stream=stream)
        await until(lambda: place["N1"].open == 1)
        place["N1"].script = streams()
        assert (await place.chat(stream=stream)).status == 200


async def test_while_a_server_that_was_silent_is_probed_others_are_kept_out() -> None:
    async with site({"N1": hangs}, Policy(retries=0)) as place, Client(place.port) as client:
        circuit = place.router.layouts["m"].by_id["N1"].circuit
        for _ in range(FAILURES_TO_OPEN):
            circuit.fail(0.0, "sent no byte within the first-byte limit", how="other")
        await client.chat()
        await until(lambda: place["N1"].open == 1)
        assert (await place.chat()).status == 503


async def test_a_failing_server_gets_nothing_while_another_does_well() -> None:
    async with site({"N1": answers(500, BOOM), "N2": streams()}) as place:
        async with asyncio.timeout(LIMIT_S):
            while place.router.circuits()["N1"].state == "closed":
                await place.chat(stream=True)
        before = len(place["N1"].seen)
        assert [(await place.chat(stream=True)).status for _ in range(20)] == [200] * 20
        assert len(place["N1"].seen) - before <= 1, "but for the one that probes"


async def test_a_server_that_takes_no_connection_is_no_resort() -> None:
    async with site({"N1": resets}) as place:
        statuses = [(await place.chat()).status for _ in range(FAILURES_TO_OPEN + 1)]
    assert statuses[-1] == 503
