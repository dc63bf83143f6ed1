"""A running stream is the same to everybody while the pump has it: client, server, record, limits and pages."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from routing import pump, turnstile
from routing.table import Policy, Timeouts
from tests.routing import scripted
from tests.routing.pumping import frame, native
from tests.routing.scripted import (
    Client,
    Seen,
    Site,
    Wire,
    chat_chunk,
    event,
    prefills,
    site,
    streams,
    until,
    usage_chunk,
)
from tests.waiting import LIMIT_S

IDLE_S = 2.0
"""An idle limit that is longer than a busy machine takes for a step of these tests."""
WORDS = ["a", " b", ' "quoted"', "\n", "\\", "ünï 🚆", "{}", "0\r\n\r\n"] * 8


@pytest.fixture(autouse=True)
def _pumping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "Native", native())


def content_event(text: str) -> bytes:
    return event(chat_chunk({"content": text}))


class Steps:
    """A decode server that sends a token for each `go`, and then does what `end` does."""

    def __init__(self) -> None:
        self._tokens: asyncio.Queue[str | None] = asyncio.Queue()
        self.given_up = False
        """The router has closed the connection."""

    def go(self, *texts: str) -> None:
        for text in texts:
            self._tokens.put_nowait(text)

    def end(self) -> None:
        self._tokens.put_nowait(None)

    async def __call__(self, seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        while (text := await self._tokens.get()) is not None:
            await wire.event(chat_chunk({"content": text}))
        await self.finish(wire)

    async def until_given_up(self, wire: Wire) -> None:
        await wire.closed_by_router()
        self.given_up = True

    async def finish(self, wire: Wire) -> None:
        await wire.event(chat_chunk({"content": "."}, "stop"))
        await wire.event(usage_chunk(completion=4))
        await wire.end_stream()


async def lent(place: Site, client: Client, steps: Steps) -> None:
    """Begins a streamed chat and brings it to where the pump has it."""
    await client.chat(stream=True)
    steps.go("a")
    await client.head()
    await client.chunk()
    for text in ("b", "c"):
        steps.go(text)
        await client.chunk()
    await until(lambda: place.router.pump.lent == 1)


async def test_a_stream_is_byte_by_byte_the_same_as_without_the_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer() -> tuple[bytes, str, int | None, int]:
        async with site({"P1": prefills, "D1": streams(WORDS, gap_s=0.001)}) as place:
            got = await place.chat(stream=True, stream_options={"include_usage": True})
            record = await place.record()
        return got.body, record.outcome, record.completion_tokens, len(record.gaps_ms)

    pumped = await answer()
    monkeypatch.setattr(pump, "Native", None)
    assert pumped == await answer()
    assert pumped[1:] == ("ok", len(WORDS), len(WORDS) - 1)


class Crowd:
    """Requests that want to begin, one in each turn, for as long as it lasts."""

    def __init__(self, place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(turnstile, "PATIENCE_S", 3600.0)
        self._turnstile = place.router.turnstile
        self._is_there = True
        for _ in range(2):
            self._come()

    def _come(self) -> None:
        if self._is_there:
            self._turnstile.enter(self._come)

    def leave(self) -> None:
        self._is_there = False


class EndsAtOnce(Steps):
    """As engines do: nothing is computed between the last token and the end."""

    async def finish(self, wire: Wire) -> None:
        last = [event(chat_chunk({"content": "."}, "stop")), event(usage_chunk(completion=4)), b"data: [DONE]\n\n"]
        await wire.send(b"".join(map(frame, last)) + b"0\r\n\r\n")


@asynccontextmanager
async def whole_but_for_its_end(
    monkeypatch: pytest.MonkeyPatch, policy: Policy | None = None
) -> AsyncIterator[tuple[Site, Client, Crowd]]:
    """The client has all tokens, and the pump's word that it has them waits for others' beginnings."""
    steps = EndsAtOnce()
    async with site({"P1": prefills, "D1": steps}, policy) as place, Client(place.port) as client:
        crowd = Crowd(place, monkeypatch)
        await lent(place, client, steps)
        steps.end()
        while b'"finish_reason":"stop"' not in await client.chunk():
            pass
        yield place, client, crowd


async def test_an_answer_whose_tokens_are_all_there_ends_when_nobody_waits_to_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with whole_but_for_its_end(monkeypatch) as (place, client, crowd):
        assert place.router.pump.lent == 1
        crowd.leave()
        assert (await client.chunk()) == b"data: [DONE]\n\n"
        record = await place.record()
    assert (record.outcome, record.completion_tokens, len(record.gaps_ms)) == ("ok", 4, 3)


async def test_a_client_that_leaves_while_its_answers_end_waits_had_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with whole_but_for_its_end(monkeypatch) as (place, client, crowd):
        client.writer.close()
        record = await place.record()
        crowd.leave()
        assert (record.outcome, record.completion_tokens, len(record.gaps_ms)) == ("ok", 4, 3)
        assert place.router.pump.lent == 0
        await until(place.nothing_is_held)
        assert place.router.connections()["D1"][1] == 1, "its server's connection is not kept"


@pytest.mark.parametrize("limits", [{"idle_s": IDLE_S}, {"total_s": 2 * IDLE_S}], ids=str)
async def test_an_end_that_waits_for_longer_than_a_limit_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, float]
) -> None:
    async with whole_but_for_its_end(monkeypatch, Policy(timeouts=Timeouts(**limits))) as (place, client, crowd):
        assert (await client.chunk()) == b"data: [DONE]\n\n"
        record = await place.record()
        crowd.leave()
    assert (record.outcome, record.error, record.completion_tokens) == ("ok", "", 4)


async def test_an_end_that_waits_when_the_router_goes_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with whole_but_for_its_end(monkeypatch) as (place, client, crowd):
        await place.router.aclose()
        assert (await client.chunk()) == b"data: [DONE]\n\n"
        crowd.leave()
        assert (await place.record()).outcome == "ok"


@pytest.mark.parametrize("odd", [{"choices": [None]}, {"choices": [{"index": [1]}]}, {"choices": [], "usage": [1]}])
async def test_an_event_that_no_engine_sends_harms_no_other_stream(odd: object) -> None:
    """They end in the same instant, so the pump gives them back together."""
    go = asyncio.Event()
    begun = 0

    async def script(seen: Seen, wire: Wire) -> None:
        nonlocal begun
        begun += 1
        is_odd = begun == 3
        await wire.start_stream()
        for text in WORDS:
            await wire.event(chat_chunk({"content": text}))
            await asyncio.sleep(0.001)
        await go.wait()
        last = [event(chat_chunk({"content": "."}, "stop")), b"data: [DONE]\n\n"]
        await wire.send(b"".join(map(frame, [event(odd), *last] if is_odd else last)) + b"0\r\n\r\n")

    async with site({"N1": script}) as place:
        asked = [asyncio.create_task(place.chat(stream=True)) for _ in range(6)]
        await until(lambda: place.router.pump.lent == 6)
        go.set()
        async with asyncio.timeout(LIMIT_S):
            answers = await asyncio.gather(*asked)
        assert sum(b"data: [DONE]" in answer.body and b"error" not in answer.body for answer in answers) >= 5
        assert place.nothing_is_held()


async def test_a_stream_of_several_choices_stays_with_the_router() -> None:
    """The end of the first choice is not the end of the answer."""
    steps = Steps()
    async with site({"N1": steps}) as place, Client(place.port) as client:
        await client.chat(stream=True, n=2)
        for text in ("a", "b", "c", "d"):
            steps.go(text)
        await client.head()
        for _ in range(4):
            await client.chunk()
        assert place.router.pump.lent == 0
        steps.end()
        await place.record()


@pytest.mark.parametrize("seed", range(12))
async def test_a_stream_cut_anywhere_with_odd_events_between_arrives_whole(seed: int) -> None:
    chance = random.Random(seed)
    texts = [chance.choice([*WORDS, "", "x" * 3000]) for _ in range(40)]
    odd = [b": a comment\n\n", event(chat_chunk({"reasoning": "hm"}))]
    events = [data for text in texts for data in [*chance.choices(odd, k=chance.random() < 0.1), content_event(text)]]

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        last = [event(chat_chunk({"content": "."}, "stop")), b"data: [DONE]\n\n"]
        data = b"".join(map(frame, [*events, *last])) + b"0\r\n\r\n"
        while data:
            length = chance.choice([1, 7, 100, len(frame(events[0])), 5000])
            await wire.send(data[:length])
            data = data[length:]
            await asyncio.sleep(chance.choice([0, 0, 0.001]))

    async with site({"P1": prefills, "D1": script}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
        assert place.router.pump.lent == 0
        assert place.nothing_is_held()
    assert answer.text == "".join(texts) + "."
    assert answer.body == b"".join(events) + event(chat_chunk({"content": "."}, "stop")) + b"data: [DONE]\n\n"
    assert record.outcome == "ok"


async def test_a_stream_whose_tokens_come_at_once_is_read_here_and_lent_when_they_come_one_by_one() -> None:
    steps = Steps()

    async def at_once(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.send(b"".join(map(frame, map(content_event, ["x"] * 40))))
        while (text := await steps._tokens.get()) is not None:
            await wire.event(chat_chunk({"content": text}))
        await steps.finish(wire)

    async with site({"P1": prefills, "D1": at_once}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await client.head()
        for _ in range(40):
            await client.chunk()
        assert place.router.pump.lent == 0
        for _ in range(3):
            steps.go("y")
            assert b'"y"' in await client.chunk()
        await until(lambda: place.router.pump.lent == 1)
        steps.end()
        await place.record()
        assert place.nothing_is_held()


async def test_a_running_stream_is_lent_and_comes_back_for_its_end() -> None:
    steps = Steps()
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        await lent(place, client, steps)
        steps.go("d", "e")
        assert [b'"d"' in await client.chunk(), b'"e"' in await client.chunk()] == [True, True]
        steps.end()
        rest = [await client.chunk() for _ in range(3)]
        record = await place.record()
        assert place.router.pump.lent == 0
        assert place.nothing_is_held()
    assert b"stop" in rest[0]
    assert rest[1:] == [b"data: [DONE]\n\n", b""]
    assert (record.outcome, len(record.gaps_ms), record.completion_tokens) == ("ok", 5, 4)


@pytest.mark.parametrize("asked", [False, True])
async def test_the_last_token_passes_as_without_the_pump(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """Engines put their fingerprint into the usage event, which goes to those only who asked for it."""

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for text in ("a", "b", "c"):
            await wire.event(chat_chunk({"content": text}))
            await asyncio.sleep(0.005)
        usage = usage_chunk(completion=4) | {"system_fingerprint": "vllm-0.31.0-abc"}
        end = [event(chat_chunk({"content": "."}, "stop")), event(usage), b"data: [DONE]\n\n"]
        await wire.send(b"".join(map(frame, end)) + b"0\r\n\r\n")

    async def answer() -> tuple[list[Any], Any]:
        async with site({"P1": prefills, "D1": script}) as place:
            got = await place.chat(stream=True, stream_options={"include_usage": asked})
            record = await place.record()
            assert place.nothing_is_held()
        told = (record.outcome, record.completion_tokens, len(record.gaps_ms), record.prompt_tokens)
        assert record.last_token_ms is not None
        assert record.first_token_ms is not None
        return got.events, told

    pumped = await answer()
    monkeypatch.setattr(pump, "Native", None)
    assert pumped == await answer()
    assert pumped[1] == ("ok", 4, 3, 8)
    assert pumped[0][-2]["system_fingerprint"] == "vllm-0.31.0-abc"
    assert bool(pumped[0][-2]["choices"]) is not asked


async def test_an_odd_event_in_between_goes_out_in_its_place_and_the_stream_is_lent_again() -> None:
    steps = Steps()
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        await lent(place, client, steps)
        for text in ("", "x", "y", "z"):
            steps.go(text)
            assert await client.chunk() == content_event(text)
        await until(lambda: place.router.pump.lent == 1)
        steps.end()
        assert len((await place.record()).gaps_ms) == 6


async def test_a_stream_is_lent_at_its_first_token() -> None:
    steps = Steps()
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        steps.go("a")
        await client.head()
        assert await client.chunk() == content_event("a")
        await until(lambda: place.router.pump.lent == 1)
        steps.end()
        assert (await place.record()).outcome == "ok"


async def test_gaps_are_seen_while_the_stream_is_lent() -> None:
    steps = Steps()
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        await lent(place, client, steps)
        steps.go(*"defg")
        await until(lambda: [len(running.record.gaps_ms) for running in place.router.active] == [6])
        steps.end()
        record = await place.record()
    assert len(record.gaps_ms) == 7


class Listens(Steps):
    """Begins a stream and then only looks whether the router still wants it."""

    async def finish(self, wire: Wire) -> None:
        await self.until_given_up(wire)


async def test_a_client_that_leaves_ends_the_servers_leg() -> None:
    steps = Listens()
    async with site({"P1": prefills, "D1": steps}) as place:
        async with Client(place.port) as client:
            await lent(place, client, steps)
        steps.end()
        record = await place.record()
        await until(lambda: steps.given_up)
        assert place.router.pump.lent == 0
        assert place.nothing_is_held()
    assert record.outcome == "cancelled"


async def test_a_server_that_dies_ends_the_stream_with_an_error() -> None:
    class Dies(Steps):
        async def finish(self, wire: Wire) -> None:
            wire.reset()

    steps = Dies()
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        await lent(place, client, steps)
        steps.end()
        last = b"".join([await client.chunk(), await client.chunk()])
        record = await place.record()
    assert b"closed the connection in the middle" in last
    assert last.endswith(b"data: [DONE]\n\n")
    assert record.outcome == "failed"


async def test_a_server_that_falls_silent_meets_the_idle_limit() -> None:
    steps = Listens()
    policy = Policy(timeouts=Timeouts(idle_s=IDLE_S))
    async with site({"P1": prefills, "D1": steps}, policy) as place, Client(place.port) as client:
        await lent(place, client, steps)
        steps.end()
        assert b"idle limit of 2 s" in await client.chunk()
        assert (await place.record()).outcome == "failed"
        await until(lambda: steps.given_up)


async def test_a_server_that_goes_on_does_not_meet_the_idle_limit() -> None:
    steps = Steps()
    policy = Policy(timeouts=Timeouts(idle_s=IDLE_S))
    async with site({"P1": prefills, "D1": steps}, policy) as place, Client(place.port) as client:
        await lent(place, client, steps)
        goes_on_until = time.monotonic() + 1.2 * IDLE_S
        while time.monotonic() < goes_on_until:
            await asyncio.sleep(0.05)
            steps.go("d")
            await client.chunk()
        steps.end()
        assert (await place.record()).outcome == "ok"


async def test_what_a_slow_client_does_not_read_arrives_whole_and_in_order() -> None:
    steps = Steps()
    texts = [f"{number} " + "x" * 8000 for number in range(1500)]
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        await lent(place, client, steps)
        client.transport.pause_reading()
        steps.go(*texts)
        await until(lambda: place.router.pump.lent == 0)  # More than the sockets hold: the client's is full.
        client.transport.resume_reading()
        for text in texts:
            assert await client.chunk() == content_event(text)
        steps.end()
        record = await place.record()
    assert (record.outcome, len(record.gaps_ms)) == ("ok", 2 + len(texts) + 1)


async def test_the_next_request_on_both_connections_is_served() -> None:
    steps = Steps()
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        for count in (1, 2):
            await lent(place, client, steps)
            steps.end()
            while await client.chunk():
                pass
            await place.records.wait(count)
        assert place["D1"].accepted == 1


def watched() -> set[int]:
    """The descriptors that the running event loop waits for."""
    loop: Any = asyncio.get_running_loop()
    waits = loop._get_backend_id() if hasattr(loop, "_get_backend_id") else loop._selector.fileno()
    lines = Path(f"/proc/self/fdinfo/{waits}").read_text().splitlines()
    return {int(line.split()[1]) for line in lines if line.startswith("tfd:")}


async def test_the_event_loop_does_not_wait_for_what_the_pump_reads() -> None:
    steps = Steps()
    async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
        await lent(place, client, steps)
        [relay] = place.router.pump._lent.values()
        server = relay._connection.descriptor()
        assert server not in watched()
        steps.end()
        while await client.chunk():
            pass
        await until(lambda: server in watched())
        await lent(place, client, steps)
        assert server not in watched()


async def test_a_server_that_answers_before_it_has_read_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop still waits to send there, so the stream is not lent meanwhile."""
    may_read = asyncio.Event()

    async def read_head(reader: asyncio.StreamReader) -> Seen | None:
        top = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in top.split("\r\n")[1:] if line)
        return Seen("POST", "/v1/chat/completions", headers, b"")

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for text in "abcdef":
            await wire.event(chat_chunk({"content": text}))
        await may_read.wait()
        await wire.read(int(seen.headers["content-length"]))
        await wire.event(chat_chunk({"content": "."}, "stop"))
        await wire.end_stream()

    monkeypatch.setattr(scripted, "read_request", read_head)
    async with site({"N1": script}) as place, Client(place.port) as client:
        await client.chat(stream=True, messages=[{"role": "user", "content": "x" * 20_000_000}])
        await client.head()
        got = [await client.chunk() for _ in "abcdef"]
        assert place.router.pump.lent == 0
        may_read.set()
        while chunk := await client.chunk():
            got.append(chunk)
    assert b"".join(got).endswith(b"data: [DONE]\n\n")


async def test_the_plain_application_keeps_its_streams() -> None:
    async with site({"P1": prefills, "D1": streams(WORDS, gap_s=0.001)}, face="asgi") as place:
        answer = asyncio.create_task(place.chat(stream=True))
        most = 0
        while not answer.done():
            most = max(most, place.router.pump.lent)
            await asyncio.sleep(0.001)
    assert most == 0
    assert (await answer).text == "".join(WORDS)


async def test_without_descriptors_to_spare_streams_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        """The pump of a process that may open no more files."""

        def __init__(self) -> None:
            self._pump = native()()

        def attach(self, *_: object) -> int:
            raise OSError(24, "Too many open files")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._pump, name)

    monkeypatch.setattr(pump, "Native", Short)
    async with site({"P1": prefills, "D1": streams(WORDS, gap_s=0.001)}) as place:
        answer = await place.chat(stream=True)
    assert answer.text == "".join(WORDS)


async def test_a_router_that_ends_breaks_lent_streams_and_keeps_no_descriptor() -> None:
    held: list[int] = []
    for _ in range(6):
        steps = Steps()
        async with site({"P1": prefills, "D1": steps}) as place, Client(place.port) as client:
            await lent(place, client, steps)
            await place.router.aclose()
            assert not await client.reader.read(1)
        await until(lambda: not held or len(os.listdir("/proc/self/fd")) <= held[0])
        # An event loop keeps some of its own from its first sockets on, and closes ours a little later.
        held.append(len(os.listdir("/proc/self/fd")))


async def test_an_end_marker_in_one_chunk_with_the_usage_arrives() -> None:
    """As a server sends them that lags behind."""

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await until(lambda: place.router.pump.lent == 1)
        usage = event(usage_chunk(completion=2) | {"system_fingerprint": "vllm-1"})
        last = event(chat_chunk({"content": "b"}, "stop"))
        await wire.send(frame(last) + frame(usage + b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with site({"N1": script}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert (answer.text, answer.events[-1], answer.whole) == ("ab", "[DONE]", True)
    assert answer.events[-2]["system_fingerprint"] == "vllm-1"
    assert (record.outcome, record.completion_tokens) == ("ok", 2)
