"""Connections to servers: kept, limited, never sent into when stale; and to clients."""

import asyncio
import json
import re
from collections.abc import Callable

import pytest

from routing import client, pool
from routing.table import Policy
from tests.routing import scripted
from tests.routing.scripted import (
    Client,
    Engine,
    Face,
    Script,
    Seen,
    Wire,
    after,
    answers,
    chat_answer,
    chat_body,
    prefill_answer,
    prefills,
    site,
    streams,
    until,
)


async def test_connections_are_kept_and_used_again() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        for _ in range(5):
            await place.chat(stream=True)
        assert (place["P1"].accepted, place["D1"].accepted) == (1, 1)
        assert place.router.connections()["D1"] == (0, 1, 2048)


async def test_many_requests_are_under_way_at_once() -> None:
    go = asyncio.Event()
    async with site({"N1": after(go, answers(200, chat_answer()))}) as place:
        requests = [asyncio.create_task(place.chat()) for _ in range(150)]
        await until(lambda: len(place["N1"].seen) == 150)
        go.set()
        assert {(await request).status for request in requests} == {200}


async def test_the_limit_of_connections_is_ours_and_says_so() -> None:
    go = asyncio.Event()
    async with site(
        {"N1": after(go, answers(200, chat_answer()))}, Policy(max_connections_per_server=2, retries=0)
    ) as place:
        requests = [asyncio.create_task(place.chat()) for _ in range(2)]
        await until(lambda: len(place["N1"].seen) == 2)
        refused = await place.chat()
        assert place.router.connections()["N1"] == (2, 0, 2)
        go.set()
        assert {(await request).status for request in requests} == {200}
    assert refused.status == 503
    assert "N1 is at its limit of 2 requests" in refused.json["error"]["message"]
    assert place.router.circuits()["N1"].failures == 0


async def test_an_idle_connection_goes_before_the_server_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_LIMIT_S", 0.1)
    async with site({"N1": streams()}) as place:
        await place.chat()
        await until(lambda: place["N1"].open == 0)
        assert place.router.connections()["N1"][1] == 0
        assert (await place.chat()).status == 200


async def test_a_connection_that_the_server_closed_while_idle_is_not_used() -> None:
    async def answers_and_closes(seen: Seen, wire: Wire) -> None:
        await wire.json(chat_answer())
        wire.writer.close()

    async with site({"N1": answers_and_closes}) as place:
        for _ in range(10):
            assert (await place.chat()).status == 200
        records = await place.records.wait(10)
    assert {record.attempts for record in records} == {1}


async def test_a_request_into_a_connection_just_closed_is_sent_again_on_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server takes the request off a kept connection and closes it without a byte, as one does that timed out."""
    monkeypatch.setattr(client, "STALE_WITHIN_S", 60.0)
    closed = 0

    async def closes_kept(seen: Seen, wire: Wire) -> None:
        nonlocal closed
        if seen.body.get("stale") and not closed:
            closed += 1
            wire.reset()
            return
        await wire.json(chat_answer())

    async with site({"N1": closes_kept}, Policy(retries=0)) as place:
        await place.chat()
        answer = await place.chat(stale=True)
        record = (await place.records.wait(2))[-1]
        assert place.router.circuits()["N1"].failures == 0
    assert (answer.status, record.attempts) == (200, 1)


async def test_a_handoff_is_sent_once_however_many_kept_connections_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode server that resets may have begun to fetch: what follows is another attempt with another hand-off."""
    monkeypatch.setattr(client, "STALE_WITHIN_S", 60.0)
    stale = False

    async def decodes(seen: Seen, wire: Wire) -> None:
        if stale:
            wire.reset()
            return
        await asyncio.sleep(0.05)  # So that each of those that came together has a connection of its own.
        await wire.json(chat_answer())

    async with site({"P1": prefills, "D1": decodes}, Policy(retries=1)) as place:
        await asyncio.gather(*(place.chat() for _ in range(4)))
        before, stale = len(place["D1"].seen), True
        assert (await place.chat()).status == 502
        with_handoff = [seen for seen in place["D1"].seen[before:] if "kv_transfer_params" in seen.body]
        assert len(with_handoff) == 1


async def test_a_connection_on_which_a_body_is_still_going_out_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses a request by its head may never read its body, and what came next would wait behind it."""

    async def read_head(reader: asyncio.StreamReader) -> Seen:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(line for line in lines if line.startswith("content-length: "))
        return Seen("POST", "", {}, await reader.readexactly(n) if (n := int(length[16:])) < 10_000 else b"")

    async def refuses_what_is_long(seen: Seen, wire: Wire) -> None:
        if seen.raw:
            await wire.json(chat_answer())
        else:
            await wire.json({"error": {"message": "too long"}}, 400)
            await asyncio.Event().wait()

    monkeypatch.setattr(scripted, "read_request", read_head)
    async with site({"N1": refuses_what_is_long}) as place:
        assert (await place.chat(extra="x" * 30_000_000)).status == 400
        assert (await place.chat()).status == 200


async def test_a_new_connection_that_breaks_is_not_tried_for_ever() -> None:
    async def resets(seen: Seen, wire: Wire) -> None:
        wire.reset()

    async with site({"N1": resets}, Policy(retries=0)) as place:
        assert (await place.chat()).status == 502
        assert len(place["N1"].seen) == 1


async def test_a_server_that_is_not_there_is_a_502_naming_it() -> None:
    async with site({"N1": streams()}, Policy(retries=0)) as place:
        await place["N1"].go_down()
        answer = await place.chat()
    assert answer.status == 502
    assert "N1 takes no connection" in answer.json["error"]["message"]


async def test_a_name_that_does_not_resolve_is_a_502() -> None:
    async with site({"N1": streams()}, Policy(retries=0)) as place:
        from dataclasses import replace

        place.publish(Policy(retries=0), servers=[replace(place.server("N1"), url="http://nowhere.invalid:1")])
        answer = await place.chat()
    assert answer.status == 502


async def test_a_server_with_a_path_in_its_address_is_called_under_it() -> None:
    async with site({"N1": streams()}) as place:
        from dataclasses import replace

        server = place.server("N1")
        place.publish(servers=[replace(server, url=server.url + "/root/")])
        await place.chat()
        assert place["N1"].seen[0].path == "/root/v1/chat/completions"
        assert place["N1"].seen[0].headers["host"] == f"127.0.0.1:{place['N1'].port}"


@pytest.mark.parametrize("face", ["direct", "asgi"])
async def test_a_client_may_send_many_requests_on_one_connection(face: Face) -> None:
    async with site({"P1": prefills, "D1": streams()}, face=face) as place, Client(place.port) as client:
        for stream in (True, False, True):
            await client.chat(stream=stream)
            assert (await client.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with site({"N1": streams(gap_s=0.01)}) as place, Client(place.port) as client:
        for number in range(3):
            await client.send("POST", "/v1/chat/completions", chat_body(stream=True), {"x-request-id": f"r{number}"})
        ids = [(await client.answer()).headers["x-request-id"] for _ in range(3)]
    assert ids == ["r0", "r1", "r2"]


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        body = json.dumps(chat_body()).encode()
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n")
        client.writer.write(b"content-length: %d\r\n\r\n" % len(body))
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        client.writer.write(body)
        assert (await client.answer()).status == 200


def old_request(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def test_an_http_1_0_client_gets_a_stream_without_chunks_and_then_the_end_of_its_connection() -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        client.writer.write(old_request("POST", "/v1/chat/completions", json.dumps(chat_body(stream=True)).encode()))
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
        async with Client(place.port) as other:
            await other.send("POST", "/v1/chat/completions", chat_body(stream=True))
            same = await other.answer()
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert without_ids(body) == without_ids(same.body)


def without_ids(stream: bytes) -> bytes:
    assert stream.endswith(b"data: [DONE]\n\n")
    return re.sub(rb'"(id|created)": ?("[^"]*"|\d+)', b"", stream)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_http_1_0_client_gets_short_answers_with_their_length(method: str) -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        client.writer.write(old_request(method, "/v1/models"))
        head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    assert len(body) == (int(found[1]) if method == "GET" else 0)
    assert b"connection: close" in head


async def test_a_chunked_request_body_is_read() -> None:
    async with site({"N1": streams()}) as place, Client(place.port) as client:
        body = json.dumps(chat_body()).encode()
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 10):
            part = body[start : start + 10]
            client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("face", ["direct", "asgi"])
async def test_eight_mebibytes_pass_and_more_than_the_limit_is_a_413(face: Face) -> None:
    async with site({"N1": answers(200, {"ok": True})}, face=face, max_body_bytes=9 * 2**20) as place:
        fits = await place.post(chat_body(extra="x" * (8 * 2**20)))
        too_large = await place.post(chat_body(extra="x" * (9 * 2**20)))
        records = await place.records.wait(2)
    assert (fits.status, too_large.status) == (200, 413)
    assert set(too_large.json["error"]) == {"message", "type", "param", "code"}
    assert (records[1].outcome, records[1].status) == ("refused", 413)


async def test_a_chunked_body_over_the_limit_is_a_413_as_well() -> None:
    async with site({"N1": streams()}, max_body_bytes=1000) as place, Client(place.port) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        client.writer.write(b"%x\r\n%b\r\n" % (2000, b"x" * 2000))
        assert (await client.answer()).status == 413


@pytest.mark.parametrize("sent_late", [0, 1000], ids=["sent at once", "refused while it is sent"])
async def test_a_request_behind_one_that_was_refused_for_its_length_is_not_served(sent_late: int) -> None:
    async with site({"N1": streams()}, max_body_bytes=1000) as place, Client(place.port) as client:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n"
        body = json.dumps(chat_body()).encode()
        data = head.format(2000).encode() + b"x" * 2000
        behind = head.format(len(body)).encode() + body
        client.writer.write(data[: len(data) - sent_late])
        if not sent_late:
            client.writer.write(behind)
        assert (await client.answer()).status == 413
        if sent_late:
            client.writer.write(data[-sent_late:] + behind)
        assert await client.reader.read() == b""
        records = await place.records.wait(1)
    assert [record.status for record in records] == [413]
    assert not place["N1"].seen


async def test_a_server_without_its_port_yet_is_reached_once_it_listens() -> None:
    async with site({"N1": streams()}, Policy(retries=0)) as place:
        engine = place["N1"]
        port = engine.port
        await engine.go_down()
        assert (await place.chat()).status == 502
        again = Engine(streams())
        await again.start(port)
        assert (await place.chat()).status == 200
        await again.stop()


STRAY = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen"


def with_more(answer: bytes, at_once: bool) -> Script:
    """A server that sends more than it promised."""

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.send(answer + STRAY if at_once else answer)
        if not at_once:
            await wire.send(STRAY)

    return script


def sized(body: bytes) -> bytes:
    return scripted.head(200, {"content-type": "application/json", "content-length": str(len(body))}) + body


def in_chunks(body: bytes) -> bytes:
    head = scripted.head(200, {"content-type": "application/json", "transfer-encoding": "chunked"})
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("framed", [sized, in_chunks])
async def test_what_follows_a_complete_answer_harms_neither_it_nor_the_next(
    framed: Callable[[bytes], bytes], at_once: bool
) -> None:
    handed_over = with_more(framed(json.dumps(prefill_answer()).encode()), at_once)
    answered = with_more(framed(json.dumps(chat_answer()).encode()), at_once)
    async with site({"P1": handed_over, "D1": answered}) as place:
        for _ in range(3):
            answer = await place.chat()
            assert (answer.status, answer.json) == (200, chat_answer())
        records = await place.records.wait(3)
        if at_once:
            assert (place["P1"].accepted, place["D1"].accepted) == (3, 3)
    assert {(record.route, record.attempts) for record in records} == {("split", 1)}


async def test_what_follows_a_stream_harms_neither_it_nor_the_next() -> None:
    async def more(seen: Seen, wire: Wire) -> None:
        await streams()(seen, wire)
        await wire.send(STRAY)

    async with site({"N1": more}) as place:
        for _ in range(3):
            assert (await place.chat(stream=True)).text == "abc"
        records = await place.records.wait(3)
    assert {record.attempts for record in records} == {1}


async def test_what_follows_an_answer_without_a_body_is_not_taken_for_the_next() -> None:
    async with site({"N1": with_more(sized(b""), at_once=True)}) as place:
        for _ in range(3):
            answer = await place.chat()
            assert (answer.status, answer.body) == (200, b"")
        assert place["N1"].accepted == 3
