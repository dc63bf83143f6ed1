"""A split request: prefill first, its hand-off to decode, the answer relayed as it comes."""

import pytest

from tests.routing.scripted import HANDOFF, Face, chat_body, prefills, site, streams

FACES: list[Face] = ["direct", "asgi"]


@pytest.mark.parametrize("face", FACES)
async def test_a_streamed_request_is_split_and_relayed(face: Face) -> None:
    async with site({"P1": prefills, "D1": streams()}, face=face) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert (answer.status, answer.text, answer.whole) == (200, "abc", True)
    assert answer.events[-1] == "[DONE]"
    assert (record.route, record.prefill_server, record.decode_server) == ("split", "P1", "D1")
    assert (record.outcome, record.completion_tokens, record.status) == ("ok", 3, 200)
    assert place.nothing_is_held()


@pytest.mark.parametrize("face", FACES)
async def test_an_unstreamed_request_is_split_and_relayed(face: Face) -> None:
    async with site({"P1": prefills, "D1": streams()}, face=face) as place:
        answer = await place.chat()
        record = await place.record()
    assert answer.json["choices"][0]["message"]["content"] == "abc"
    assert record.first_token_ms is None
    assert (record.outcome, record.completion_tokens) == ("ok", 3)


async def test_the_prefill_server_is_asked_for_one_kept_token() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        await place.chat(stream=True, max_tokens=50)
        body = place["P1"].seen[0].body
    assert (body["max_tokens"], body["stream"]) == (1, False)
    assert body["kv_transfer_params"]["do_remote_decode"] is True
    assert body["messages"] == chat_body()["messages"]


async def test_the_decode_server_gets_the_clients_body_and_the_handoff() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        await place.chat(stream=True, max_tokens=50, unknown_field={"a": [1]})
        body = place["D1"].seen[0].body
    assert body.pop("kv_transfer_params") == HANDOFF
    assert body.pop("stream_options") == {"include_usage": True}
    assert body == chat_body(stream=True, max_tokens=50, unknown_field={"a": [1]})


async def test_a_deployment_of_plain_servers_is_served_by_them() -> None:
    async with site({"N1": streams()}) as place:
        answer = await place.chat(stream=True)
        record = await place.record()
    assert answer.text == "abc"
    assert (record.route, record.prefill_server, record.decode_server) == ("plain", None, "N1")


async def test_every_answer_names_its_request_its_servers_and_its_route() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        headers = (await place.chat(stream=True)).headers
    assert headers["x-switchyard-route"] == "split"
    assert (headers["x-switchyard-prefill"], headers["x-switchyard-decode"]) == ("P1", "D1")
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert headers["x-request-id"]
