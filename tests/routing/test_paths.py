"""Which paths are served, and how; all others are a JSON 404."""

import hashlib
from types import MappingProxyType
from typing import Any

import pytest

from routing.table import Deployment, Table
from tests.routing.scripted import (
    Face,
    Seen,
    Wire,
    answers,
    chat_body,
    event,
    prefills,
    site,
    streams,
)

CARD = {"id": "m", "object": "model", "owned_by": "vllm", "root": "/models/m", "max_model_len": 4096, "extra": [1]}


async def cards_or_streams(seen: Seen, wire: Wire) -> None:
    if seen.path == "/v1/models":
        await wire.json({"object": "list", "data": [CARD]})
    else:
        await streams()(seen, wire)


@pytest.mark.parametrize("face", ["direct", "asgi"])
@pytest.mark.parametrize(
    "path",
    ["/v1/sleep", "/v1/nothing", "/v1/", "/v1/collective_rpc", "/v1/load_lora_adapter", "/v1/models/other"],
)
async def test_what_is_not_served_is_a_json_404(path: str, face: Face) -> None:
    async with site({"N1": cards_or_streams}, face=face) as place:
        method = "GET" if "models" in path else "POST"
        answer = await (place.get(path) if method == "GET" else place.post({}, path))
        assert [seen for seen in place["N1"].seen if seen.path != "/v1/models"] == []
    assert answer.status == 404
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "path",
    [
        *("/sleep", "/reset_prefix_cache", "/collective_rpc", "/metrics", "/abort_requests", "/pause", "/server_info"),
        *("/docs", "/redoc", "/kv_event_sources", "/is_scaling_elastic_ep", "/adapters", "/v1/realtime"),
        *("/start_profile", "/scale_elastic_ep", "/inference/v1/other", "/fault_tolerance/apply", "/load/x"),
    ],
)
async def test_control_paths_of_an_engine_are_out_of_reach(path: str) -> None:
    async with site({"N1": streams()}) as place:
        assert (await place.post({"model": "m"}, path)).status == 404
        assert place["N1"].seen == []


async def test_the_wrong_method_is_a_405() -> None:
    async with site({"N1": streams()}) as place:
        answer = await place.get("/v1/chat/completions")
    assert answer.status == 405
    assert "Use POST" in answer.json["error"]["message"]


async def test_a_trailing_slash_makes_no_difference() -> None:
    async with site({"N1": streams()}) as place:
        assert (await place.post(chat_body(), "/v1/chat/completions/")).status == 200
        assert place["N1"].seen[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "path",
    [
        *("/tokenize", "/detokenize", "/v1/embeddings", "/v2/embed", "/rerank", "/v1/rerank", "/v1/score", "/pooling"),
        *("/generative_scoring", "/invocations", "/v1/chat/completions/render", "/v1/responses/render"),
    ],
)
async def test_other_useful_paths_go_to_a_server_that_answers(path: str) -> None:
    async with site({"P1": prefills, "D1": answers(200, {"count": 3})}) as place:
        answer = await place.post({"model": "m", "prompt": "hi"}, path)
        record = await place.record()
        assert place["P1"].seen == []
    assert answer.json == {"count": 3}
    assert (record.route, record.decode_server) == ("direct", "D1")


async def test_a_form_names_its_model_and_passes_unchanged() -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n\r\n\x00\xff\r\n--b--\r\n'
    async with site({"N1": answers(200, {"text": "hi"})}) as place:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await place.post(form, "/v1/audio/transcriptions", headers)
        seen = place["N1"].seen[0]
    assert answer.json == {"text": "hi"}
    assert (seen.raw, seen.headers["content-type"]) == (form, headers["content-type"])


async def test_model_cards_are_the_engines_own() -> None:
    async with site({"P1": cards_or_streams, "D1": cards_or_streams}) as place:
        listed = await place.get("/v1/models")
        one = await place.get("/v1/models/m")
    assert listed.json == {"object": "list", "data": [CARD]}
    assert one.json == CARD


async def test_model_cards_come_from_the_servers_that_answer() -> None:
    async with site({"D1": cards_or_streams, "D2": cards_or_streams}) as place:
        await place["D1"].go_down()
        assert (await place.get("/v1/models")).json["data"] == [CARD]


async def test_a_model_whose_servers_are_all_down_is_still_listed() -> None:
    async with site({"D1": cards_or_streams}) as place:
        await place["D1"].go_down()
        listed = await place.get("/v1/models")
    assert [card["id"] for card in listed.json["data"]] == ["m"]


async def test_an_unknown_model_is_a_404_that_names_what_is_served() -> None:
    async with site({"N1": streams()}) as place:
        answer = await place.post({**chat_body(), "model": "other"})
        record = await place.record()
    assert (answer.status, answer.json["error"]["param"]) == (404, "model")
    assert "Served: m." in answer.json["error"]["message"]
    assert (record.outcome, record.deployment) == ("refused", "")


async def test_the_model_may_be_left_out_when_there_is_one() -> None:
    async with site({"N1": streams()}) as place:
        assert (await place.post({"messages": []})).status == 200


async def test_nothing_served_is_a_503_with_when_to_come_back() -> None:
    async with site({}) as place:
        place.router.swap(type(place.router.table)())
        answer = await place.chat()
    assert answer.status == 503
    assert "retry-after" in answer.headers


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe"])
async def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    async with site({"N1": streams()}) as place:
        answer = await place.post(body)
    assert answer.status == 400
    assert "JSON object" in answer.json["error"]["message"]


async def test_the_messages_api_gets_errors_that_its_clients_read() -> None:
    async with site({"N1": streams()}) as place:
        answer = await place.post({"model": "other"}, "/v1/messages")
    assert (answer.json["type"], answer.json["error"]["code"]) == ("error", 404)


async def test_a_stored_response_is_read_where_it_was_made() -> None:
    async def makes(seen: Seen, wire: Wire) -> None:
        await wire.json({"id": f"resp_{wire.writer.get_extra_info('sockname')[1]}", "usage": {"input_tokens": 1}})

    async with site({"P1": prefills, "D1": makes, "D2": makes}) as place:
        made = [(await place.post({"model": "m", "input": "x"}, "/v1/responses")).json["id"] for _ in range(4)]
        for response_id in made:
            answer = await place.get(f"/v1/responses/{response_id}")
            assert answer.json["id"] == response_id
            follow = await place.post(
                {"model": "m", "input": "x", "previous_response_id": response_id}, "/v1/responses"
            )
            assert follow.json["id"] == response_id
        unknown = await place.get("/v1/responses/resp_x")
    assert unknown.status == 404
    assert unknown.json["error"]["message"] == "Response with id 'resp_x' not found."


@pytest.mark.parametrize("model", [5, ["m"], {}, True])
async def test_a_model_that_is_no_string_is_a_400(model: object) -> None:
    async with site({"N1": streams()}) as place:
        answer = await place.post({**chat_body(), "model": model})
    assert (answer.status, answer.json["error"]["param"]) == (400, "body.model")


SMUGGLED = "x%20HTTP/1.1%0d%0ahost:%20a%0d%0a%0d%0aPOST%20/collective_rpc%20HTTP/1.1%0d%0ahost:%20a%0d%0a%0d%0aGET%20/x"


@pytest.mark.parametrize("face", ["direct", "asgi"])
@pytest.mark.parametrize("behind", [SMUGGLED, "a%20b", "%E2%82%AC", "../../../metrics", "input_items", "%2e%2e/load"])
async def test_nothing_but_its_id_follows_the_path_of_a_stored_response(behind: str, face: Face) -> None:
    """Decoded and written into a request's first line, some would be requests of their own to an engine."""
    async with site({"N1": answers(200, {"id": "resp_1"})}, face=face) as place:
        await place.post({"model": "m", "input": "x"}, "/v1/responses")
        for path in (f"/v1/responses/resp_1/{behind}", f"/v1/responses/{behind}"):
            assert (await place.get(path)).status == 404
        assert [seen.path for seen in place["N1"].seen] == ["/v1/responses"]


async def test_a_stored_response_is_found_without_its_models_name() -> None:
    script = answers(200, {"id": "resp_1"})
    async with site({"N1": script, "N2": script}) as place:
        key = frozenset({hashlib.sha256(b"key").hexdigest()})
        deployments = {"m": ("N1", None), "other": ("N2", key)}
        table = {
            name: Deployment(name, name, (place.server(server),), key_hashes=keys)
            for name, (server, keys) in deployments.items()
        }
        place.router.swap(Table(9, MappingProxyType(table)))
        await place.post({"model": "m", "input": "x"}, "/v1/responses")
        assert (await place.get("/v1/responses/resp_1")).status == 200
        assert (await place.post({}, "/v1/responses/resp_1/cancel")).status == 200
        await place.post({"model": "other", "input": "x"}, "/v1/responses", {"authorization": "Bearer key"})
        assert (await place.get("/v1/responses/resp_1")).status == 401
        assert (await place.get("/v1/responses/resp_1", {"authorization": "Bearer key"})).status == 200
        assert [seen.path for seen in place["N2"].seen] == ["/v1/responses", "/v1/responses/resp_1"]


async def test_a_responses_stream_is_split_and_counted() -> None:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        parts: list[dict[str, Any]] = [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_text.delta", "delta": "a"},
            {"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 1}}},
        ]
        for part in parts:
            await wire.chunk(b"event: " + part["type"].encode() + b"\n" + event(part))
        await wire.end_stream(done=False)

    async with site({"P1": prefills, "D1": script}) as place:
        answer = await place.post({"model": "m", "input": "x", "stream": True}, "/v1/responses")
        record = await place.record()
        assert place["P1"].seen[0].body["max_output_tokens"] == 1
    assert [item["type"] for item in answer.events][-1] == "response.completed"
    assert (record.outcome, record.route, record.completion_tokens) == ("ok", "split", 1)


@pytest.mark.parametrize("body", [{"n": 3}, {"prompt_logprobs": 1}, {"use_beam_search": True}])
async def test_what_cannot_be_split_goes_whole_and_unchanged_to_one_server(body: dict[str, Any]) -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.chat(**body)
        record = await place.record()
        assert place["P1"].seen == []
        assert place["D1"].seen[0].body == chat_body(**body)
    assert (answer.status, record.route) == (200, "direct")


async def test_the_query_is_passed_on() -> None:
    async with site({"N1": streams()}) as place:
        await place.post(chat_body(), "/v1/chat/completions?a=b%20c")
        assert place["N1"].seen[0].path == "/v1/chat/completions?a=b%20c"
