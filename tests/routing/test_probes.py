"""What may be asked of a server beside requests, and /invocations, which takes the body of any API."""

import hashlib
from types import MappingProxyType

import pytest

from routing.table import Deployment, Server, Table
from tests.routing.scripted import (
    HANDOFF,
    Answer,
    Client,
    Face,
    Seen,
    Site,
    Wire,
    answers,
    ask,
    chat_body,
    chat_chunk,
    hangs,
    prefills,
    site,
    streams,
)
from tests.simulator.harness import SimulatedServer

VERSION = {"version": "0.31.0"}
KEY = frozenset({hashlib.sha256(b"right").hexdigest()})


def counted(place: Site) -> bool:
    return bool(place.records.all) or b"requests_total{" in place.router.metrics.render()


@pytest.mark.parametrize("face", ["direct", "asgi"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/version"), ("GET", "/load"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/tokenizer_info")],
)
async def test_a_server_answers_and_nobody_counts_it_as_a_request(method: str, path: str, face: Face) -> None:
    async with site({"P1": prefills, "D1": answers(200, VERSION)}, face=face) as place:
        answer = await ask(place.port, method, path)
        [seen] = place["D1"].seen
        assert not counted(place)
        assert place.nothing_is_held()
    assert (answer.status, answer.json) == (200, VERSION)
    assert (seen.method, seen.path, seen.raw) == (method, path, b"")


async def test_another_server_answers_for_one_that_does_not() -> None:
    async with site({"D1": answers(503, b""), "D2": answers(200, VERSION), "N1": hangs}) as place:
        await place["N1"].go_down()
        assert [(await place.get("/version")).json for _ in range(4)] == [VERSION] * 4


async def test_where_no_server_works_a_ping_says_so() -> None:
    async with site({"D1": answers(503, b"")}) as place:
        assert (await place.get("/ping")).status == 503
        await place["D1"].go_down()
        assert (await place.get("/ping")).status == 503


async def test_what_servers_say_of_their_api_is_asked_where_no_stream_waits_for_it() -> None:
    async with site({"D1": hangs, "N1": hangs, "P1": answers(200, {"openapi": "3.1.0"})}) as place:
        answer = await place.get("/openapi.json")
    assert (answer.status, answer.json) == (200, {"openapi": "3.1.0"})


async def test_what_a_server_does_not_have_is_its_own_404() -> None:
    async with site({"N1": answers(404, {"detail": "Not Found"})}) as place:
        answer = await place.get("/tokenizer_info")
    assert (answer.status, answer.json) == (404, {"detail": "Not Found"})


async def test_a_wrong_method_is_a_405_that_names_the_right_ones() -> None:
    async with site({"N1": answers(200, VERSION)}) as place:
        ping = await ask(place.port, "DELETE", "/ping")
        version = await place.post({}, "/version")
        assert place["N1"].seen == []
    assert (ping.status, ping.headers["allow"]) == (405, "GET, POST")
    assert (version.status, version.headers["allow"]) == (405, "GET")


async def test_a_key_is_asked_for_where_a_deployment_has_one_except_for_health() -> None:
    async with site({"N1": answers(200, VERSION), "N2": answers(200, {"version": "other"})}) as place:
        table = {
            "a": Deployment("a", "a", (place.server("N1"),), key_hashes=frozenset({"other"})),
            "b": Deployment("b", "b", (place.server("N2"),), key_hashes=KEY),
        }
        place.router.swap(Table(9, MappingProxyType(table)))
        right = {"authorization": "Bearer right"}
        assert [(await place.get(path)).status for path in ("/version", "/load", "/ping")] == [401, 401, 200]
        assert (await place.get("/version", right)).json == {"version": "other"}


async def generates(seen: Seen, wire: Wire) -> None:
    assert seen.path == "/invocations"
    await streams()(seen, wire)


async def invoke(place: Site, **body: object) -> Answer:
    return await place.post(chat_body(**body), "/invocations")


async def test_an_invocation_that_generates_goes_whole_to_one_server() -> None:
    async with site({"P1": prefills, "D1": generates}) as place:
        answer = await invoke(place)
        record = await place.record()
        assert place["P1"].seen == []
    assert answer.json["choices"][0]["message"]["content"] == "abc"
    assert (record.route, record.decode_server, record.completion_tokens) == ("direct", "D1", 3)


async def test_an_invocation_streams_token_by_token_with_its_times() -> None:
    async with site({"D1": generates}) as place:
        async with Client(place.port) as client:
            await client.send("POST", "/invocations", chat_body(stream=True))
            assert (await client.head())[1]["content-type"].startswith("text/event-stream")
            answer = b""
            while part := await client.chunk():
                answer += part
        record = await place.record()
    assert answer.count(b"data: ") == 5  # The role, three tokens, the end: no usage, which nobody asked for.
    assert record.first_token_ms is not None
    assert (record.outcome, len(record.gaps_ms)) == ("ok", 2)


async def test_the_first_token_of_an_invocation_is_not_held_back() -> None:
    async def stops(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await wire.closed_by_router()

    async with site({"D1": stops}) as place, Client(place.port) as client:
        await client.send("POST", "/invocations", chat_body(stream=True))
        assert (await client.head())[0] == 200
        assert b'"content":"a"' in await client.chunk()


async def test_a_hand_off_in_an_invocation_reaches_no_server() -> None:
    async with site({"D1": generates}) as place:
        await invoke(place, kv_transfer_params=HANDOFF, vllm_xargs={"kv_transfer_params": HANDOFF})
        [seen] = place["D1"].seen
    assert b"remote" not in seen.raw


async def test_an_invocation_that_breaks_after_its_first_token_says_so_in_the_stream() -> None:
    async def breaks(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        wire.reset()

    async with site({"D1": breaks}) as place:
        answer = await invoke(place, stream=True)
    assert answer.events[-1] == "[DONE]"
    assert "error" in answer.events[-2]


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_of_an_invocation_are_answered_in_full(stream: bool) -> None:
    async with SimulatedServer("decode", name="m") as decode, site({}) as place:
        body = {"model": "m", "prompt": ["one", "two"], "max_tokens": 3, "stream": stream}
        place.publish(servers=[Server("D1", "D1", "decode", decode.url)])
        answer = await place.post(body, "/invocations")
        record = await place.record()
    ends = answer.body.count(b'"finish_reason":"length"')
    assert (answer.status, ends, record.outcome) == (200, 2, "ok")


async def test_the_adapter_of_an_invocation_is_named_by_a_header() -> None:
    args = ["--lora-modules", "lora=/a"]
    async with (
        SimulatedServer("plain", name="m", args=args) as with_it,
        SimulatedServer("plain", name="m") as without,
        site({}) as place,
    ):
        place.publish(
            servers=[Server(name, name, "plain", one.url) for name, one in (("N1", without), ("N2", with_it))]
        )
        body = {"model": "m", "prompt": "x", "max_tokens": 2}
        names = {"x-amzn-sagemaker-adapter-identifier": "lora"}
        answers = [await place.post(body, "/invocations", names) for _ in range(4)]
        unknown = await place.post(body, "/invocations", {"x-amzn-sagemaker-adapter-identifier": "other"})
    assert [(answer.status, answer.json["model"]) for answer in answers] == [(200, "lora")] * 4
    assert unknown.status == 404


async def test_the_model_in_an_invocations_body_is_overlooked_as_engines_do() -> None:
    async with SimulatedServer("plain", name="m") as server, site({}) as place:
        place.publish(servers=[Server("N1", "N1", "plain", server.url)])
        answer = await place.post({"model": "whatever", "prompt": "x", "max_tokens": 2}, "/invocations")
    assert (answer.status, answer.json["model"]) == (200, "m")
