"""The shapes of answers, streamed and whole, of each API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.simulator.harness import SimulatedServer
from tests.waiting import wait_until

USER = [{"role": "user", "content": "hello there"}]
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    args = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-prompt-tokens-details"]
    with SimulatedServer(args=args) as started:
        yield started


def post(server: SimulatedServer, path: str, **body: Any) -> Any:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def events(server: SimulatedServer, path: str, **body: Any) -> list[Any]:
    """The data of each event, [DONE] left out but required where the API has it."""
    response = httpx.post(f"{server.url}{path}", json={"stream": True, **body}, timeout=120)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    if path.startswith(("/v1/chat", "/v1/completions")):
        assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def chat(server: SimulatedServer, **body: Any) -> Any:
    return post(server, "/v1/chat/completions", messages=USER, **body)


def chat_events(server: SimulatedServer, **body: Any) -> list[Any]:
    return events(server, "/v1/chat/completions", messages=USER, **body)


def test_completion_answer(server: SimulatedServer) -> None:
    answer = post(server, "/v1/completions", prompt="hello", max_tokens=3)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["kv_transfer_params"] is None
    choice = answer["choices"][0]
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert len(choice["text"]) == 12
    assert answer["usage"]["completion_tokens"] == 3


def test_completion_without_limit_has_16_tokens(server: SimulatedServer) -> None:
    assert post(server, "/v1/completions", prompt="hello")["usage"]["completion_tokens"] == 16


def test_completion_stream_has_the_text_of_the_whole_answer(server: SimulatedServer) -> None:
    chunks = events(server, "/v1/completions", prompt="hello", max_tokens=3)
    whole = post(server, "/v1/completions", prompt="hello", max_tokens=3)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert set(chunks[0]["choices"][0]) == {
        "index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids",
    }  # fmt: skip
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert "system_fingerprint" in chunks[-1]
    assert "system_fingerprint" not in chunks[0]


def test_chat_answer(server: SimulatedServer) -> None:
    answer = chat(server, max_tokens=3)
    message = answer["choices"][0]["message"]
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert message["role"] == "assistant"
    assert message["reasoning"] is None
    assert "tool_calls" not in message


def test_chat_stream_begins_with_the_role_and_ends_with_the_reason(server: SimulatedServer) -> None:
    chunks = chat_events(server, max_tokens=2)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [set(delta) for delta in deltas[1:]] == [{"content"}, {"content"}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)


def test_usage_chunk_comes_only_when_asked_for(server: SimulatedServer) -> None:
    assert all(chunk["choices"] for chunk in chat_events(server, max_tokens=2))
    *_, last = chat_events(server, max_tokens=2, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2


def test_continuous_usage_is_in_every_chunk(server: SimulatedServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chat_events(server, max_tokens=2, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 2]


def test_max_completion_tokens_wins_over_max_tokens(server: SimulatedServer) -> None:
    assert chat(server, max_tokens=1, max_completion_tokens=5)["usage"]["completion_tokens"] == 5


def test_answer_without_limit_stops_by_itself(server: SimulatedServer) -> None:
    assert chat(server)["choices"][0]["finish_reason"] == "stop"


def test_n_gives_that_many_choices(server: SimulatedServer) -> None:
    assert [choice["index"] for choice in chat(server, n=3, max_tokens=2)["choices"]] == [0, 1, 2]


def test_list_of_prompts_gives_a_choice_each(server: SimulatedServer) -> None:
    answer = post(server, "/v1/completions", prompt=["one", "two"], max_tokens=2)
    alone = post(server, "/v1/completions", prompt="two", max_tokens=2)
    assert answer["choices"][1]["text"] == alone["choices"][0]["text"]


def test_token_ids_are_a_prompt_like_their_text(server: SimulatedServer) -> None:
    tokens = post(server, "/tokenize", prompt="hello there")["tokens"]
    by_ids = post(server, "/v1/completions", prompt=tokens, max_tokens=4)
    by_text = post(server, "/v1/completions", prompt="hello there", max_tokens=4)
    assert by_ids["choices"][0]["text"] == by_text["choices"][0]["text"]


def test_seed_changes_sampled_text_and_not_greedy_text(server: SimulatedServer) -> None:
    def text(**body: Any) -> str:
        content: str = chat(server, max_tokens=6, **body)["choices"][0]["message"]["content"]
        return content

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text(seed=1, temperature=0) == text(temperature=0)


def test_stop_string_ends_the_text_before_it(server: SimulatedServer) -> None:
    whole = post(server, "/v1/completions", prompt="hello", max_tokens=8)["choices"][0]["text"]
    stop = whole[14:18]
    choice = post(server, "/v1/completions", prompt="hello", max_tokens=8, stop=[stop])["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    chunks = events(server, "/v1/completions", prompt="hello", max_tokens=8, stop=stop)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]


def test_stop_string_within_min_tokens_is_ignored(server: SimulatedServer) -> None:
    whole = post(server, "/v1/completions", prompt="hello", max_tokens=8)["choices"][0]["text"]
    choice = post(server, "/v1/completions", prompt="hello", max_tokens=8, min_tokens=8, stop=whole[1:3])["choices"][0]
    assert choice["finish_reason"] == "length"


def test_stop_token_id_ends_the_text_without_it(server: SimulatedServer) -> None:
    whole = post(server, "/v1/completions", prompt="hello", max_tokens=8, return_token_ids=True)["choices"][0]
    third = whole["token_ids"][2]
    choice = post(server, "/v1/completions", prompt="hello", max_tokens=8, stop_token_ids=[third])["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (whole["text"][:8], third)


def test_logit_bias_on_the_end_token_stops_at_once(server: SimulatedServer) -> None:
    answer = chat(server, logit_bias={"2": 100}, max_tokens=9)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 1
    assert chat_events(server, logit_bias={"2": 100}, max_tokens=9)[-1]["choices"][0]["delta"] == {}


def test_echo_puts_the_prompt_first(server: SimulatedServer) -> None:
    answer = post(server, "/v1/completions", prompt="hello", max_tokens=1, echo=True)
    assert answer["choices"][0]["text"].startswith("hello ")


def test_logprobs_have_an_entry_per_token(server: SimulatedServer) -> None:
    content = chat(server, max_tokens=3, logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]["content"]
    assert [set(entry) for entry in content] == [{"token", "logprob", "bytes", "top_logprobs"}] * 3
    logprobs = post(server, "/v1/completions", prompt="hello", max_tokens=3, logprobs=1)["choices"][0]["logprobs"]
    assert {name: len(values) for name, values in logprobs.items()} == {
        "text_offset": 3, "token_logprobs": 3, "tokens": 3, "top_logprobs": 3,
    }  # fmt: skip


def test_json_schema_gives_json_of_that_schema(server: SimulatedServer) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = chat(server, response_format=wanted)["choices"][0]
    assert isinstance(json.loads(choice["message"]["content"])["age"], int)
    assert choice["finish_reason"] == "stop"


def test_json_cut_by_the_limit_ends_with_length(server: SimulatedServer) -> None:
    choice = chat(server, response_format={"type": "json_object"}, max_tokens=2)["choices"][0]
    assert choice["finish_reason"] == "length"


def test_required_tool_is_called(server: SimulatedServer) -> None:
    choice = chat(server, tools=[TOOL], tool_choice="required")["choices"][0]
    call = choice["message"]["tool_calls"][0]["function"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["name"] == "weather"
    assert "city" in json.loads(call["arguments"])


def test_named_tool_ends_with_stop(server: SimulatedServer) -> None:
    choice = chat(server, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "weather"}})["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_tool_call_streams_its_name_and_then_its_arguments(server: SimulatedServer) -> None:
    chunks = chat_events(server, tools=[TOOL], tool_choice="required")
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert (calls[0]["function"]["name"], calls[0]["type"]) == ("weather", "function")
    arguments = "".join(call["function"].get("arguments", "") for call in calls)
    whole = chat(server, tools=[TOOL], tool_choice="required")["choices"][0]["message"]["tool_calls"][0]
    assert arguments == whole["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_shape_the_prompt(server: SimulatedServer) -> None:
    assert (
        chat(server, tools=[TOOL], max_tokens=1)["usage"]["prompt_tokens"]
        > chat(server, max_tokens=1)["usage"]["prompt_tokens"]
    )


def test_parts_of_content_are_joined(server: SimulatedServer) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]
    answer = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": parts}], max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == chat(server, max_tokens=1)["usage"]["prompt_tokens"]


def test_cached_tokens_are_reported_with_the_flag(server: SimulatedServer) -> None:
    prompt = "the same long beginning again " * 20
    first = post(server, "/v1/completions", prompt=prompt, max_tokens=1)["usage"]
    second = post(server, "/v1/completions", prompt=prompt, max_tokens=1)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == (first["prompt_tokens"] - 1) // 16 * 16


def test_cached_tokens_are_not_reported_without_it() -> None:
    with SimulatedServer() as quiet:
        assert post(quiet, "/v1/completions", prompt="x", max_tokens=1)["usage"]["prompt_tokens_details"] is None


def test_prompt_logprobs_compute_the_whole_prompt_again(server: SimulatedServer) -> None:
    prompt = "computed every time " * 20
    post(server, "/v1/completions", prompt=prompt, max_tokens=1)
    before = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    answer = post(server, "/v1/completions", prompt=prompt, max_tokens=1, prompt_logprobs=1)
    after = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    assert after - before == answer["usage"]["prompt_tokens"]
    assert len(answer["choices"][0]["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]


def test_an_echo_of_a_chat_computes_the_whole_prompt_again(server: SimulatedServer) -> None:
    said = [{"role": "user", "content": "computed every time " * 20}]
    post(server, "/v1/chat/completions", messages=said, max_tokens=1)
    before = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    answer = post(server, "/v1/chat/completions", messages=said, max_tokens=1, echo=True)
    after = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    assert after - before == answer["usage"]["prompt_tokens"]


def test_request_id_of_the_client_is_in_the_answers_id(server: SimulatedServer) -> None:
    response = httpx.post(
        f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "mine"}
    )
    assert response.json()["id"] == "cmpl-mine"
    assert "x-request-id" not in response.headers


@pytest.mark.parametrize(
    ("path", "prefix", "with_header", "without"),
    [
        ("/v1/completions", "cmpl-", "cmpl-head", "cmpl-mine"),
        ("/v1/chat/completions", "chatcmpl-", "chatcmpl-head", "chatcmpl-mine"),
        ("/v1/responses", "resp_", "mine", "mine"),
        ("/v1/messages", "chatcmpl-", "chatcmpl-head", None),
    ],
)
def test_an_id_in_the_body_counts_where_vllm_takes_it(
    server: SimulatedServer, path: str, prefix: str, with_header: str, without: str | None
) -> None:
    said = [{"role": "user", "content": "x"}]
    body = {"model": "tiny", "prompt": "x", "messages": said, "input": "x", "max_tokens": 1, "max_output_tokens": 1}
    for headers, expected in (({"x-request-id": "head"}, with_header), ({}, without)):
        given = httpx.post(f"{server.url}{path}", json={**body, "request_id": "mine"}, headers=headers).json()["id"]
        assert given == expected if expected is not None else given.startswith(prefix) and "mine" not in given
    assert httpx.post(f"{server.url}{path}", json=body).json()["id"].startswith(prefix)
    wrong = httpx.post(f"{server.url}{path}", json={**body, "request_id": 5})
    assert wrong.status_code == (200 if path == "/v1/messages" else 400)


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("text", "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0"),
        ("JSON", 'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}'),
        ("other", None),
    ],
)
def test_a_whole_answer_tells_of_the_load_in_the_form_that_was_asked_for(
    server: SimulatedServer, form: str, told: str | None
) -> None:
    asked = {"endpoint-load-metrics-format": form}
    for stream in (False, True):
        body = {"prompt": "x", "max_tokens": 1, "stream": stream}
        response = httpx.post(f"{server.url}/v1/completions", json=body, headers=asked)
        assert response.headers.get("endpoint-load-metrics") == (None if stream else told)
    body = {"input": "x", "max_output_tokens": 1}
    response = httpx.post(f"{server.url}/v1/responses", json=body, headers=asked)
    assert "endpoint-load-metrics" not in response.headers


def test_request_id_is_echoed_with_the_flag() -> None:
    with SimulatedServer(args=["--enable-request-id-headers"]) as echoing:
        response = httpx.get(f"{echoing.url}/health", headers={"X-Request-Id": "mine"})
        assert response.headers["x-request-id"] == "mine"


def test_responses_answer_and_stream_have_the_same_text(server: SimulatedServer) -> None:
    body = {"input": "hello", "max_output_tokens": 4}
    answer = post(server, "/v1/responses", **body)
    text = answer["output"][0]["content"][0]["text"]
    assert (answer["object"], answer["status"]) == ("response", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["output_tokens"] == 4
    stream = events(server, "/v1/responses", **body)
    assert [stream[0]["type"], stream[-1]["type"]] == ["response.created", "response.completed"]
    assert "".join(event["delta"] for event in stream if event["type"] == "response.output_text.delta") == text
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))


def test_messages_answer_and_stream_have_the_same_text(server: SimulatedServer) -> None:
    body = {"model": "tiny", "messages": USER, "max_tokens": 4}
    answer = post(server, "/v1/messages", **body)
    assert (answer["type"], answer["stop_reason"]) == ("message", "max_tokens")
    stream = events(server, "/v1/messages", **body)
    assert [stream[0]["type"], stream[-1]["type"]] == ["message_start", "message_stop"]
    deltas = [event["delta"] for event in stream if event["type"] == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == answer["content"][0]["text"]
    assert (
        post(server, "/v1/messages/count_tokens", model="tiny", messages=USER)["input_tokens"]
        == answer["usage"]["input_tokens"]
    )


def test_messages_tool_is_called(server: SimulatedServer) -> None:
    tool = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    body = {"model": "tiny", "messages": USER, "max_tokens": 99, "tools": [tool], "tool_choice": {"type": "any"}}
    answer = post(server, "/v1/messages", **body)
    assert answer["stop_reason"] == "tool_use"
    stream = events(server, "/v1/messages", **body)
    assert [event["type"] for event in stream[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [event["delta"]["partial_json"] for event in stream if event["type"] == "content_block_delta"]
    assert json.loads("".join(deltas)) == answer["content"][0]["input"]


def test_a_tool_call_cut_by_the_limit_is_none(server: SimulatedServer) -> None:
    choice = chat(server, tools=[TOOL], tool_choice="required", max_tokens=1)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert "tool_calls" not in choice["message"]


def test_invocations_answers_chats_and_completions(server: SimulatedServer) -> None:
    assert post(server, "/invocations", messages=USER, max_tokens=1)["object"] == "chat.completion"
    assert post(server, "/invocations", prompt="x", max_tokens=1)["object"] == "text_completion"


def test_openai_package_reads_chats_streams_and_responses(server: SimulatedServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        messages: list[Any] = USER
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
        stream = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == answer.choices[0].message.content
        response = client.responses.create(model="tiny", input="hello", max_output_tokens=4)
        with client.responses.stream(model="tiny", input="hello", max_output_tokens=4) as events:
            assert events.get_final_response().output_text == response.output_text


def test_chunks_merge_when_the_reader_lags() -> None:
    env = {"SIMULATOR_SPEED": "1000", "SIMULATOR_KV_TOKENS": "400000", "SIMULATOR_MODEL_MAX_LEN": "200000"}
    tokens = 60_000
    with (
        SimulatedServer(env=env) as server,
        httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json={"prompt": "x", "max_tokens": tokens, "stream": True},
            timeout=120,
        ) as response,
    ):
        wait_until(lambda: server.metric("vllm:generation_tokens_total") == tokens, "all tokens generated")
        chunks = [line for line in response.iter_lines() if line.startswith("data: {")]
        text = "".join(json.loads(chunk[6:])["choices"][0]["text"] for chunk in chunks)
    assert len(text) == 4 * tokens
    assert len(chunks) < tokens


def test_token_ids_are_answered_with_token_ids() -> None:
    with SimulatedServer(args=["--enable-scale-out"]) as server:
        path, settings = "/inference/v1/generate", {"max_tokens": 3, "stop": None}
        answer = post(server, path, token_ids=[200, 201], sampling_params=settings)
        assert answer["request_id"].startswith("generate-tokens-")
        assert answer["usage"]["prompt_tokens"] == 2
        ids = answer["choices"][0]["token_ids"]
        body = {"stream": True, "token_ids": [200, 201], "sampling_params": settings}
        lines = httpx.post(f"{server.url}{path}", json=body, timeout=120).text.splitlines()
    assert len(ids) == 3
    assert lines[-2] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [number for chunk in chunks for number in chunk["choices"][0]["token_ids"]] == ids


def test_token_ids_are_taken_only_where_that_is_asked_for(server: SimulatedServer) -> None:
    assert httpx.post(f"{server.url}/inference/v1/generate", json={}).status_code == 404
