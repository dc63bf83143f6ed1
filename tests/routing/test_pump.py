"""The pump relays exactly the usual tokens, byte by byte, and gives back everything else."""

import contextlib
import gc
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from routing.http1 import unframed
from routing.pump import End
from routing.sse import Scanner
from tests.routing.pumping import floats, frame, native, taught, token
from tests.routing.scripted import Json, chat_chunk, event, usage_chunk
from tests.waiting import LIMIT_S, wait_for


@dataclass
class Lent:
    """A stream at the pump: `engine` writes what a server would, `reader` reads what a client gets."""

    pump: Any
    engine: socket.socket
    reader: socket.socket
    ours: tuple[socket.socket, socket.socket]
    key: int

    def given_back(self) -> End:
        assert select.select([self.pump], [], [], LIMIT_S)[0], "nothing was given back"
        [(key, end)] = self.pump.take_back()
        assert key == self.key
        found: End = end
        return found

    def read(self, length: int) -> bytes:
        self.reader.settimeout(LIMIT_S)
        data = b""
        while len(data) < length and (more := self.reader.recv(length - len(data))):
            data += more
        return data

    def nothing_arrives(self) -> bool:
        return not select.select([self.reader], [], [], 0)[0]

    def close(self) -> None:
        for each in (self.engine, self.reader, *self.ours):
            each.close()


def lend(pump: Any, last_s: float | None = None, *, drop_usage: bool = False) -> Lent:
    engine, server = socket.socketpair()
    client, reader = socket.socketpair()
    client.setblocking(False)
    server.setblocking(False)
    at_s = time.monotonic() if last_s is None else last_s
    key = pump.attach(server.fileno(), client.fileno(), taught(drop_usage=drop_usage).shape(), at_s)
    return Lent(pump, engine, reader, (server, client), key)


@pytest.fixture
def pump() -> Iterator[Any]:
    made = native()()
    yield made
    made.close()


@pytest.fixture
def lent(pump: Any) -> Iterator[Lent]:
    stream = lend(pump)
    yield stream
    stream.close()


def test_usual_tokens_pass_as_they_came(lent: Lent) -> None:
    sent = b"".join(map(token, ["a", " word", "ünïcode 🚆", "\\n", "{}"]))
    lent.engine.sendall(sent)
    assert lent.read(len(sent)) == sent


def test_the_time_since_the_last_token_is_noted_and_told_once(pump: Any) -> None:
    lent = lend(pump, last_s=time.monotonic() - 2.0)
    lent.engine.sendall(token("a"))
    lent.read(len(token("a")))
    [(key, (gaps, last_s))] = pump.progress()
    assert key == lent.key
    assert 2000 <= floats(gaps)[0] < 60_000
    assert last_s <= time.monotonic()
    assert pump.progress() == []
    lent.close()


def test_tokens_that_came_together_have_no_gap_between_them(lent: Lent) -> None:
    lent.engine.sendall(token("a") + token("b") + token("c"))
    lent.read(3 * len(token("a")))
    gaps, _, unsent, answered, unread = lent.pump.detach(lent.key)
    assert floats(gaps)[1:] == [0.0, 0.0]
    assert (unsent, answered, unread) == (b"", b"", b"")


@pytest.mark.parametrize(
    "odd",
    [
        frame(event(chat_chunk({"content": ""}, "stop"))),
        frame(event(chat_chunk({"content": "z"}, ""))),
        frame(event(chat_chunk({"content": "z"}, "stop", usage={"total_tokens": 1}))),
        frame(event(chat_chunk({"content": ""}))),
        frame(event(chat_chunk({"reasoning": "z"}))),
        frame(event(chat_chunk({"content": "z"}, usage={"total_tokens": 1}))),
        frame(b"data: [DONE]\n\n"),
        frame(b": a comment\n\n"),
        frame(event(chat_chunk({"content": "a"})) + event(chat_chunk({"content": "b"}))),
        token("cut")[:-1],
        token("cut")[:5],
        b"1",
        b"0\r\n\r\n",
        b"not a chunk at all",
        b"ffffffffff\r\n",
        b"\r\n",
    ],
)
def test_whatever_else_comes_is_given_back_unread(lent: Lent, odd: bytes) -> None:
    lent.engine.sendall(token("usual") + odd)
    assert lent.read(len(token("usual"))) == token("usual")
    gaps, _, unsent, answered, unread = lent.given_back()
    if not unread:  # The odd bytes came in a read of their own, and stayed where they were or came along.
        unread = lent.ours[0].recv(4096)
    assert (len(floats(gaps)), unsent, answered, unread) == (1, b"", b"", odd)
    assert lent.nothing_arrives()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=20))
def test_a_chunk_passes_exactly_when_parsing_finds_a_usual_token(pump: Any, text: str) -> None:
    data = event(chat_chunk({"content": text}))
    _, counting = Scanner("chat", drop_usage=False).feed(data)
    lent = lend(pump)
    lent.engine.sendall(frame(data))
    ready, _, _ = select.select([pump, lent.reader], [], [], LIMIT_S)
    assert ready == ([lent.reader] if counting else [pump])
    if pump in ready:
        assert lent.given_back()[4] == frame(data)
    else:
        pump.detach(lent.key)
    lent.close()


def last(text: str, reason: str | None, **more: object) -> Json:
    """The event that ends an answer, with what engines add to its choice then."""
    chunk = chat_chunk({"content": text}, reason)
    choice: Json = {}
    for name, value in chunk["choices"][0].items():
        choice |= {name: value} | (more if name == "finish_reason" else {})
    return chunk | {"choices": [choice]}


def told(data: bytes) -> list[object]:
    return [line if line == b"data: [DONE]" else json.loads(line[6:]) for line in data.split(b"\n") if line]


FINGERPRINTS = st.one_of(st.just({}), st.builds(lambda value: {"system_fingerprint": value}, st.none() | st.text()))


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(max_size=10),
    reason=st.sampled_from(["stop", "length", "abort", "ünïcode", '"', None]),
    more=st.sampled_from([{}, {"stop_reason": None}, {"stop_reason": 7}, {"stop_reason": "]"}, {"stop_reason": [{}]}]),
    usage=st.one_of(st.none(), st.builds(lambda fingerprint: usage_chunk() | fingerprint, FINGERPRINTS)),
    drop_usage=st.booleans(),
    before=st.integers(0, 3),
    joins=st.sets(st.integers(0, 6)),
)
@example(text="b", reason="stop", more={}, usage=usage_chunk(), drop_usage=True, before=1, joins={2})
@example(text="b", reason="stop", more={}, usage=usage_chunk(), drop_usage=True, before=1, joins={1})
@example(text="b", reason="stop", more={}, usage=usage_chunk(), drop_usage=False, before=1, joins={0})
def test_the_event_that_ends_the_answer_goes_out_as_the_scanner_would_pass_it_on(
    pump: Any,
    text: str,
    reason: str | None,
    more: Json,
    usage: Json | None,
    drop_usage: bool,
    before: int,
    joins: set[int],
) -> None:
    """`joins`: which events come in one chunk with the next, as those of a server that lags behind."""
    payloads = [chat_chunk({"content": "a"})] * before + [last(text, reason, **more)] + ([usage] if usage else [])
    chunks = [b""]
    for number, each in enumerate([*map(event, payloads), b"data: [DONE]\n\n"]):
        chunks[-1] += each
        chunks += [] if number in joins else [b""]
    data = b"".join(frame(chunk) for chunk in chunks if chunk)
    alone, beside = taught(drop_usage=drop_usage), taught(drop_usage=drop_usage)
    expected, tokens = alone.feed(unframed(data))
    lent = lend(pump, drop_usage=drop_usage)
    lent.engine.sendall(data)
    gaps, _, unsent, answered, unread = lent.given_back()
    lent.ours[0].setblocking(False)
    with contextlib.suppress(BlockingIOError):
        unread += lent.ours[0].recv(65536)
    with contextlib.suppress(BlockingIOError):
        lent.reader.setblocking(False)
        got = b""
        got = lent.reader.recv(65536)
    beside.feed(unframed(answered))
    rest, counting = beside.feed(unframed(unread))
    assert told(unframed(got + unsent) + rest) == told(expected)
    assert len(floats(gaps)) + counting == tokens
    assert (beside.ended, beside.usage, beside.done, beside.is_complete, beside.error, beside.rest()) == (
        *(alone.ended, alone.usage, alone.done, alone.is_complete, alone.error, alone.rest()),
    )
    lent.close()


@pytest.mark.parametrize("drop_usage", [False, True])
def test_the_usual_end_of_an_answer_waits_for_nobody(pump: Any, drop_usage: bool) -> None:
    lent = lend(pump, drop_usage=drop_usage)
    usage = event(usage_chunk() | {"system_fingerprint": "vllm-0.31.0-abc"})
    lent.engine.sendall(frame(event(last(" end", "stop", stop_reason=None))) + frame(usage))
    _, _, _, answered, unread = lent.given_back()
    assert unframed(answered) == event(last(" end", "stop", stop_reason=None)) + (usage if drop_usage else b"")
    passed = last(" end", "stop", stop_reason=None) | ({"system_fingerprint": "vllm-0.31.0-abc"} if drop_usage else {})
    assert lent.read(len(frame(event(passed)))) == frame(event(passed))
    assert unread == (b"" if drop_usage else frame(usage))
    lent.close()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=30))
def test_any_bytes_in_a_texts_place_pass_only_as_the_inside_of_one_string(pump: Any, inside: bytes) -> None:
    prefix, suffix, *_ = taught().shape()
    lent = lend(pump)
    lent.engine.sendall(frame(prefix + inside + suffix))
    ready, _, _ = select.select([pump, lent.reader], [], [], LIMIT_S)
    bare = inside.replace(b"\\\\", b"").replace(b'\\"', b"")
    assert (lent.reader in ready) == (inside != b"" and b'"' not in bare and not bare.endswith(b"\\"))
    if pump in ready:
        pump.take_back()
    else:
        pump.detach(lent.key)
    lent.close()


def test_the_servers_end_is_given_back_for_its_connection_to_meet(lent: Lent) -> None:
    lent.engine.close()
    assert lent.given_back()[2:] == (b"", b"", b"")
    assert lent.ours[0].recv(1) == b""


def test_what_a_slow_client_does_not_take_is_given_back_in_order(lent: Lent) -> None:
    chunk = token("x" * 4000)
    lent.ours[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    sent = 20 * chunk
    for _ in range(20):
        lent.engine.sendall(chunk)
    _, _, unsent, _, unread = lent.given_back()
    lent.engine.close()
    left = b"".join(iter(lambda: lent.ours[0].recv(65536), b""))
    written = unsent + unread + left
    assert unsent
    assert lent.read(len(sent) - len(written)) + written == sent


def test_a_client_that_is_gone_stops_nothing(lent: Lent) -> None:
    lent.reader.close()
    for _ in range(3):
        lent.engine.sendall(token("a"))
    wait_for(lambda: sum(len(floats(gaps)) for _, (gaps, _) in lent.pump.progress()) > 0, "tokens are counted")
    lent.pump.detach(lent.key)


def test_a_detached_stream_is_touched_no_more(lent: Lent) -> None:
    lent.pump.detach(lent.key)
    lent.engine.sendall(token("a"))
    other = lend(lent.pump)
    other.engine.sendall(token("b"))
    other.read(len(token("b")))
    assert lent.nothing_arrives()
    assert lent.ours[0].recv(4096) == token("a")
    other.close()


def test_a_key_is_never_used_again(lent: Lent) -> None:
    lent.pump.detach(lent.key)
    other = lend(lent.pump)
    assert other.key != lent.key
    with pytest.raises(KeyError):
        lent.pump.detach(lent.key)
    other.close()


def test_a_stream_given_back_can_still_be_wanted_back(lent: Lent) -> None:
    lent.engine.sendall(b"odd")
    assert select.select([lent.pump], [], [], LIMIT_S)[0]
    assert lent.pump.detach(lent.key)[4] == b"odd"
    assert lent.pump.take_back() == []


def test_many_streams_come_and_go_and_no_descriptor_stays(pump: Any) -> None:
    first = lend(pump)
    pump.detach(first.key)
    first.close()
    gc.collect()  # What earlier tests left behind is not to be closed meanwhile.
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        streams = [lend(pump) for _ in range(100)]
        for number, lent in enumerate(streams):
            lent.engine.sendall(token("a") if number % 2 else b"odd")
        for lent in streams[1::2]:
            assert lent.read(len(token("a"))) == token("a")
        back: dict[int, Any] = {}
        while len(back) < 50:
            assert select.select([pump], [], [], LIMIT_S)[0], "half of them are given back"
            back.update(pump.take_back())
        for lent in streams:
            if lent.key not in back:
                pump.detach(lent.key)
            lent.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_closing_ends_the_thread_and_lets_go_of_every_stream() -> None:
    made = native()()
    lent = lend(made)
    made.close()
    lent.engine.sendall(token("a"))
    assert lent.ours[0].recv(4096) == token("a")
    with pytest.raises(ValueError, match="closed"):
        made.attach(lent.ours[0].fileno(), lent.ours[1].fileno(), taught().shape(), 0.0)
    lent.close()


def test_a_socket_that_is_none_is_refused(pump: Any) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        pump.attach(-1, -1, taught().shape(), 0.0)
    assert pump.progress() == []
