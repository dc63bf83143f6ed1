"""What vLLM refuses, with its status, type and words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.simulator.harness import SimulatedServer

USER = [{"role": "user", "content": "hi"}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(args=["--max-model-len", "1024"]) as started:
        yield started


def refusal(server: SimulatedServer, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=30)
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == response.status_code
    return response.status_code, error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"),
        ({"prompt": ""}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"),
        ({"prompt": []}, "You must pass at least one prompt"),
        ({"prompt": "x", "n": 0}, "n must be at least 1, got 0."),
        ({"prompt": "x", "temperature": -1},
         "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"),
        ({"prompt": "x", "max_tokens": 2000}, "max_tokens=2000 cannot be greater than max_model_len=1024. "
         "Please request fewer output tokens. (parameter=max_tokens, value=2000)"),
        ({"prompt": "x", "max_tokens": 1, "min_tokens": 5},
         "min_tokens must be less than or equal to max_tokens=1, got 5."),
        ({"prompt": "x", "stream_options": {"include_usage": True}},
         "Stream options can only be defined when `stream=True`. (parameter=stream_options)"),
        ({"prompt": "x", "logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20 "
         "(parameter=logprobs, value=21)"),
        ({"prompt": "x", "prompt_logprobs": 21}, "Requested prompt logprobs of 21, which is greater than max allowed: "
         "20 (parameter=prompt_logprobs, value=21)"),
        ({"prompt": "x", "n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2."),
    ],
)  # fmt: skip
def test_completion_is_refused_with_bad_request_error(
    server: SimulatedServer, body: dict[str, Any], words: str
) -> None:
    status, error = refusal(server, "/v1/completions", body)
    assert (status, error["type"], error["message"]) == (400, "BadRequestError", words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "Cannot apply chat template to an empty conversation. Provide at least one message."),
        ({"messages": IMAGE}, "tiny is not a multimodal model"),
        ({"messages": USER, "tools": TOOLS},
         '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        ({"messages": USER, "tools": TOOLS, "tool_choice": "required"},
         'tool_choice="required" requires --tool-call-parser to be set'),
        ({"messages": USER, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
         'tool_choice=function "f" requires --tool-call-parser to be set'),
        ({"messages": USER, "tool_choice": "required"},
         "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)"),
    ],
)  # fmt: skip
def test_chat_is_refused_with_bad_request_error(server: SimulatedServer, body: dict[str, Any], words: str) -> None:
    status, error = refusal(server, "/v1/chat/completions", body)
    assert (status, error["type"], error["message"]) == (400, "BadRequestError", words)


TYPED = "1 validation error:\n  {{'type': '{}', 'loc': 'body.{}', 'msg': 'Input should be a valid {}', 'input': '{}'}}"
NO_INTEGER = "integer, unable to parse string as an integer"
NO_NUMBER = "number, unable to parse string as a number"
NO_BOOLEAN = "boolean, unable to interpret input"


@pytest.mark.parametrize(
    ("name", "value", "kind", "what", "shown"),
    [
        ("max_tokens", "many", "int_parsing", NO_INTEGER, "many"),
        ("max_tokens", 1.5, "int_from_float", "integer, got a number with a fractional part", "1.5"),
        ("n", [2], "int_type", "integer", "<list of 1 items>"),
        ("seed", "x", "int_parsing", NO_INTEGER, "x"),
        ("temperature", "warm", "float_parsing", NO_NUMBER, "warm"),
        ("temperature", {"a": 1}, "float_type", "number", "<dict of 1 items>"),
        ("top_p", [], "float_type", "number", "<list of 0 items>"),
        ("stream", 3, "bool_parsing", NO_BOOLEAN, "3"),
        ("stream", "maybe", "bool_parsing", NO_BOOLEAN, "maybe"),
        ("stream", [], "bool_type", "boolean", "<list of 0 items>"),
        ("model", 3, "string_type", "string", "3"),
        ("stop_token_ids", 3, "list_type", "list", "3"),
        ("kv_transfer_params", "text", "dict_type", "dictionary", "text"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_field_of_the_wrong_type_is_named(
    server: SimulatedServer, path: str, name: str, value: object, kind: str, what: str, shown: str
) -> None:
    status, error = refusal(server, path, {"prompt": "x", "messages": USER, name: value})
    assert (status, error["type"], error["param"]) == (400, "Bad Request", f"body.{name}")
    assert error["message"] == TYPED.format(kind, name, what, shown)


def test_chat_has_a_truth_value_and_a_list_of_its_own(server: SimulatedServer) -> None:
    _, error = refusal(server, "/v1/chat/completions", {"messages": USER, "logprobs": "x"})
    assert error["message"] == TYPED.format("bool_parsing", "logprobs", NO_BOOLEAN, "x")
    _, error = refusal(server, "/v1/chat/completions", {"messages": "Say something."})
    assert error["message"] == TYPED.format("list_type", "messages", "list", "Say something.")


def test_every_way_to_read_a_field_is_named(server: SimulatedServer) -> None:
    _, error = refusal(server, "/v1/completions", {"prompt": "x", "stop": ["a", 1]})
    assert (error["type"], error["param"]) == ("Bad Request", "body.stop")
    assert error["message"] == (
        "2 validation errors:\n"
        "  {'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string', "
        "'input': '<list of 2 items>'}\n"
        "  {'type': 'string_type', 'loc': 'body.stop.1', 'msg': 'Input should be a valid string', 'input': '1'}"
    )


def test_all_wrong_fields_are_named_up_to_ten(server: SimulatedServer) -> None:
    _, error = refusal(
        server, "/v1/completions", {"prompt": "x", "n": "x", "max_tokens": "x", "stop_token_ids": ["x"] * 20}
    )
    lines = error["message"].splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("22 validation errors:", "  ...and 12 more errors", 12)
    assert "body.max_tokens" in lines[1]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/completions", {"logprobs": "x"}, "`logprobs` must be an integer. (parameter=logprobs, value=x)"),
        ("/v1/completions", {"logprobs": [1]}, "`logprobs` must be an integer. (parameter=logprobs, value=[1])"),
        ("/v1/completions", {"logprobs": -2},
         "`logprobs` must be a positive value or -1. (parameter=logprobs, value=-2)"),
        ("/v1/completions", {"prompt_logprobs": "x"},
         "`prompt_logprobs` must be an integer. (parameter=prompt_logprobs, value=x)"),
        ("/v1/completions", {"prompt_logprobs": 1, "stream": True},
         "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": "x"},
         "`top_logprobs` must be an integer. (parameter=top_logprobs, value=x)"),
        ("/v1/chat/completions", {"top_logprobs": 2},
         "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"),
    ],
)  # fmt: skip
def test_log_probabilities_are_checked_before_the_rest(
    server: SimulatedServer, path: str, body: dict[str, Any], words: str
) -> None:
    status, error = refusal(server, path, {"prompt": "x", "messages": USER, "n": "x", **body})
    assert (status, error["type"], error["message"]) == (400, "BadRequestError", words)


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": "3", "temperature": "0", "n": 1.0, "stream": "false", "logprobs": True},
        {"max_tokens": 3.0, "temperature": False, "n": "1", "stream": 0, "stop_token_ids": ["7"], "logprobs": 1.0},
    ],
)
def test_what_can_stand_for_a_number_or_a_truth_value_is_taken_for_it(
    server: SimulatedServer, body: dict[str, Any]
) -> None:
    plain = {"prompt": "x", "max_tokens": 3, "temperature": 0, "n": 1, "logprobs": 1}
    answers = [httpx.post(f"{server.url}/v1/completions", json={**plain, **more}).json() for more in ({}, body)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_a_prompt_of_the_wrong_type_is_a_bad_request(server: SimulatedServer) -> None:
    status, error = refusal(server, "/v1/completions", {"prompt": {"not": "a prompt"}})
    assert (status, error["type"], error["param"]) == (400, "Bad Request", "body.prompt")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/messages", {"messages": USER, "model": "tiny", "max_tokens": "many"}, "body.max_tokens"),
        ("/v1/messages", {"messages": "hi", "model": "tiny", "max_tokens": 3}, "body.messages"),
        ("/v1/responses", {"input": "hi", "max_output_tokens": "many"}, "body.max_output_tokens"),
        ("/v1/responses", {"input": "hi", "temperature": []}, "body.temperature"),
    ],
)
def test_the_other_apis_name_their_own_fields(
    server: SimulatedServer, path: str, body: dict[str, Any], param: str
) -> None:
    answer = httpx.post(f"{server.url}{path}", json=body)
    assert answer.status_code == 400
    assert param in answer.json()["error"]["message"]


def test_missing_messages_are_a_bad_request(server: SimulatedServer) -> None:
    _, error = refusal(server, "/v1/chat/completions", {})
    assert (error["type"], error["param"]) == ("Bad Request", "body.messages")
    assert error["message"] == (
        "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', "
        "'input': '<dict of 0 items>'}"
    )


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_body_that_is_not_json_is_a_bad_request(server: SimulatedServer, kind: str) -> None:
    response = httpx.post(f"{server.url}/v1/completions", content=b"{", headers={"content-type": kind})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "Bad Request"


def test_prompt_that_is_too_long_names_input_tokens(server: SimulatedServer) -> None:
    status, error = refusal(server, "/v1/completions", {"prompt": "x" * 4200, "max_tokens": 5})
    assert (status, error["type"], error["param"]) == (400, "BadRequestError", "input_tokens")
    assert error["message"].startswith("This model's maximum context length is 1024 tokens. However, ")


def test_unknown_model_is_not_found(server: SimulatedServer) -> None:
    status, error = refusal(server, "/v1/completions", {"model": "other", "prompt": "x"})
    assert (status, error["type"]) == (404, "NotFoundError")
    assert error["message"] == "The model `other` does not exist."


def test_model_may_be_left_out_and_unknown_fields_are_ignored(server: SimulatedServer) -> None:
    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1, "whatever": {}})
    assert response.status_code == 200
    assert response.json()["model"] == "tiny"


def test_errors_of_streams_are_plain_json_before_the_first_byte(server: SimulatedServer) -> None:
    response = httpx.post(f"{server.url}/v1/completions", json={"prompt": "", "stream": True})
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")


def test_messages_are_refused_in_their_own_shape(server: SimulatedServer) -> None:
    body = {"model": "tiny", "messages": [], "max_tokens": 1}
    response = httpx.post(f"{server.url}/v1/messages", json=body)
    assert response.status_code == 400
    assert (response.json()["type"], response.json()["error"]["type"]) == ("error", "BadRequestError")


def test_messages_need_a_model_and_a_limit(server: SimulatedServer) -> None:
    assert refusal(server, "/v1/messages", {"messages": USER, "max_tokens": 1})[1]["param"] == "body.model"
    assert refusal(server, "/v1/messages", {"messages": USER, "model": "tiny"})[1]["param"] == "body.max_tokens"


def test_responses_without_input_are_refused(server: SimulatedServer) -> None:
    assert refusal(server, "/v1/responses", {"model": "tiny"})[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        {"messages": USER, "response_format": {"type": "json_schema", "json_schema": "x"}},
        {"messages": USER, "logit_bias": {"2": "much"}},
    ],
)
def test_what_nobody_foresaw_is_a_500_and_the_server_goes_on(server: SimulatedServer, body: dict[str, Any]) -> None:
    status, error = refusal(server, "/v1/chat/completions", body)
    assert (status, error["type"]) == (500, "InternalServerError")
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_megabytes_of_prompt_are_refused_with_their_number_of_tokens(server: SimulatedServer) -> None:
    status, error = refusal(server, "/v1/completions", {"prompt": "x" * 5_000_000, "max_tokens": 5})
    assert status == 400
    assert "your prompt contains 1250000 input tokens" in error["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": [5, 32_000]}, "Token id 32000 is out of vocabulary"),
        ({"prompt": "x", "structured_outputs": {"choice": []}}, "Choice '[]' cannot be an empty list"),
        ({"prompt": "x", "logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20 "
         "(parameter=logprobs, value=21)"),
        ({"prompt": "x", "logit_bias": {"32000": 1}},
         "token_id(s) [32000] in logit_bias contain out-of-vocab token ids. Vocabulary size: 32000 "
         "(parameter=logit_bias, value=[32000])"),
        ({"prompt": "x", "allowed_token_ids": []}, "allowed_token_ids is not None and empty! "
         "(parameter=allowed_token_ids, value=[])"),
        ({"prompt": "x", "allowed_token_ids": [-1]}, "allowed_token_ids contains out-of-vocab token id! "
         "(parameter=allowed_token_ids, value=[-1])"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses_a_stream_tells(server: SimulatedServer, body: dict[str, Any], words: str) -> None:
    status, error = refusal(server, "/v1/completions", body)
    assert (status, error["type"], error["message"]) == (400, "BadRequestError", words)
    response = httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True})
    told, done, _ = response.text.split("\n\n")
    assert (response.status_code, done) == (200, "data: [DONE]")
    assert json.loads(told.removeprefix("data: "))["error"] == error


def test_a_response_that_the_engine_refuses_breaks_off(server: SimulatedServer) -> None:
    body = {"input": "x", "stream": True, "structured_outputs": {"choice": []}}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{server.url}/v1/responses", json=body)


def test_a_message_that_the_engine_refuses_tells_so_in_words_of_the_framework(server: SimulatedServer) -> None:
    body = {"model": "tiny", "messages": USER, "max_tokens": 2, "stream": True, "allowed_token_ids": []}
    response = httpx.post(f"{server.url}/v1/messages", json=body)
    error = json.loads(response.text.split("data: ")[1])["error"]
    assert error["type"] == "internal_error"
    assert "input_value={'error': {'message': 'al...oken_ids', 'code': 400}}, input_type=dict]" in error["message"]
