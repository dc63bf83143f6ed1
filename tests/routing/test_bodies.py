"""The two legs' bodies, made from the client's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.bodies import (
    ENGINES_TOOLS,
    LARGE_BYTES,
    DecodeBody,
    NotJson,
    Sendable,
    Unread,
    answers_of,
    forces_a_tool,
    in_utf8,
    parse,
    prefill_body,
    why_not_split,
    without_handoff,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HANDOFF = {"do_remote_prefill": True, "remote_block_ids": [[1]]}
keys = st.text(max_size=8)
leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
objects = st.dictionaries(keys, values, max_size=6)


def prefill(path: str = CHAT, **body: object) -> dict[str, Any]:
    return loaded(prefill_body(path, {"model": "m", **body}))


def loaded(body: Sendable) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(b"".join(body) if isinstance(body, list) else body)
    return made


def decode(body: dict[str, Any], handoff: dict[str, Any] | None = HANDOFF, raw: bytes | None = None) -> dict[str, Any]:
    raw = json.dumps(body).encode() if raw is None else raw
    return loaded(DecodeBody(raw, body, touched=False, counts_by_usage=True).sendable(handoff, usage_forced=False))


@given(objects, st.sampled_from([None, 2]), st.booleans())
def test_the_decode_body_is_the_clients_plus_the_handoff(
    body: dict[str, Any], indent: int | None, ascii_: bool
) -> None:
    without_handoff(body)
    body.pop("stream", None)
    raw = (json.dumps(body, indent=indent, ensure_ascii=ascii_) + " \n").encode("utf-8", "surrogatepass")
    assert decode(body, raw=raw) == {**body, "kv_transfer_params": HANDOFF}


@given(objects)
def test_the_prefill_body_asks_for_one_kept_token_whatever_the_client_sent(body: dict[str, Any]) -> None:
    made = loaded(prefill_body(CHAT, body))
    assert (made["max_tokens"], made["stream"]) == (1, False)
    assert made["kv_transfer_params"]["do_remote_decode"] is True


def test_both_limits_are_one_for_prefill_when_the_client_names_the_newer() -> None:
    made = prefill(max_completion_tokens=300)
    assert (made["max_tokens"], made["max_completion_tokens"]) == (1, 1)


def test_a_limit_that_the_client_did_not_name_is_not_added_for_decode() -> None:
    assert "max_tokens" not in decode({"model": "m", "max_completion_tokens": 300})


@pytest.mark.parametrize(
    "name",
    ["stream_options", "min_tokens", "stop", "stop_token_ids", "stop_sequences", "prompt_logprobs", "echo", "best_of"],
)
def test_what_one_token_cannot_honour_is_left_out_for_prefill(name: str) -> None:
    assert name not in prefill(CHAT, **{name: 1})


@pytest.mark.parametrize(
    "name",
    ["tools", "response_format", "chat_template_kwargs", "cache_salt", "truncate_prompt_tokens", "messages", "seed"],
)
def test_what_shapes_the_prompt_stays_for_prefill(name: str) -> None:
    assert prefill(CHAT, **{name: ["x"]})[name] == ["x"]


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "logprob_token_ids"])
def test_what_is_asked_of_each_token_stays_for_prefill_which_refuses_what_is_wrong_with_it(name: str) -> None:
    assert prefill(CHAT, **{name: 99})[name] == 99


def test_one_choice_is_asked_of_prefill() -> None:
    assert prefill(n=1)["n"] == 1


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}, {"type": "any"}])
def test_a_tool_is_forced(choice: object) -> None:
    assert forces_a_tool({"tools": [{"type": "function"}], "tool_choice": choice})
    assert not forces_a_tool({"tool_choice": choice})


@pytest.mark.parametrize("choice", ["auto", "none", None, {"type": "auto"}, {"type": "none"}])
def test_no_tool_is_forced(choice: object) -> None:
    assert not forces_a_tool({"tools": [{"type": "function"}], "tool_choice": choice})


@pytest.mark.parametrize("choice", ["required", "none", {"type": "function", "function": {"name": "f"}}])
def test_the_choice_of_a_tool_stays_for_prefill_since_it_may_stand_in_the_prompt(choice: object) -> None:
    assert prefill(tools=[{"type": "function"}], tool_choice=choice)["tool_choice"] == choice


def test_no_tool_choice_is_added_where_the_client_gave_none() -> None:
    assert "tool_choice" not in prefill(tools=[{"type": "function"}])


def test_the_responses_api_has_its_own_limit() -> None:
    made = prefill("/v1/responses", max_output_tokens=50, input="hi")
    assert made["max_output_tokens"] == 1
    assert "max_tokens" not in made


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"n": 2}),
        (CHAT, {"best_of": 2}),
        (CHAT, {"use_beam_search": True}),
        (CHAT, {"prompt_logprobs": 0}),
        (CHAT, {"messages": [], "truncate_prompt_tokens": -1}),
        (COMPLETIONS, {"prompt": "x", "truncate_prompt_tokens": "-1"}),
        ("/v1/responses", {"input": "x", "truncation": "auto"}),
        (COMPLETIONS, {"prompt": "x", "echo": True, "logprobs": 0}),
        (CHAT, {"messages": [], "echo": True}),
        (COMPLETIONS, {"prompt": ["a", "b"]}),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}),
        (COMPLETIONS, {"prompt": "x", "prompt_embeds": "eA=="}),
        (COMPLETIONS, {}),
        (CHAT, {"messages": [], "max_tokens": 0}),
        (CHAT, {"messages": [], "max_completion_tokens": -5, "max_tokens": 5}),
        (CHAT, {"messages": [], "max_tokens": 2.5}),
        (CHAT, {"messages": [], "max_tokens": "0"}),
        (CHAT, {"messages": [], "max_tokens": "five"}),
        (CHAT, {"messages": [], "max_tokens": "9" * 5000}),
        (CHAT, {"messages": [], "max_tokens": "5", "min_tokens": "6"}),
        (CHAT, {"messages": [], "min_tokens": 6, "max_tokens": 5}),
        (CHAT, {"messages": [], "min_tokens": -1}),
        (CHAT, {"messages": [], "stream_options": {"include_usage": True}}),
        (CHAT, {"messages": [], "logprobs": True, "top_logprobs": 21}),
        (COMPLETIONS, {"prompt": "x", "logprobs": -1}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 0}),
        ("/v1/messages", {"messages": [], "max_tokens": 0}),
        ("/v1/messages", {"messages": [], "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 9}}),
        ("/v1/messages", {"messages": [], "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": "1"}}),
        (CHAT, {"messages": [], "stop": 5}),
        (CHAT, {"messages": [], "stop": ["a", None]}),
        (CHAT, {"messages": [], "stop_token_ids": [5, "a"]}),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": 5}),
        ("/v1/messages", {"messages": [], "max_tokens": 9, "stop_sequences": [5]}),
        (CHAT, {"messages": [], "stream": True, "stream_options": "text"}),
        (CHAT, {"messages": [], "stream": True, "stream_options": {"include_usage": "maybe"}}),
        ("/v1/responses", {"previous_response_id": "resp_1"}),
        ("/v1/responses", {"background": True}),
        *(("/v1/responses", {"input": "x", "tools": [{"type": kind}]}) for kind in ENGINES_TOOLS),
        ("/v1/responses", {"input": "x", "tools": Unread(memoryview(b'[{"type": "mcp"}]'), 0)}),
        ("/v1/responses", {"input": "x", "tools": Unread(memoryview(b" " * (LARGE_BYTES + 1)), 0)}),
    ],
)
def test_requests_that_no_split_serves_right(path: str, body: dict[str, Any]) -> None:
    assert why_not_split(path, body) is not None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [], "n": None}),
        (CHAT, {"messages": [], "n": 1, "logprobs": True}),
        (CHAT, {"messages": [], "echo": False}),
        (CHAT, {"messages": [], "min_tokens": 6, "max_completion_tokens": 6, "max_tokens": 5}),
        (CHAT, {"messages": [], "min_tokens": 6, "max_tokens": None, "stream_options": {}}),
        (CHAT, {"messages": [], "logprobs": True, "top_logprobs": 20}),
        (CHAT, {"messages": [], "max_tokens": "6", "min_tokens": "6"}),
        (CHAT, {"messages": [], "truncate_prompt_tokens": 40}),
        (CHAT, {"messages": [], "stop": "a", "stop_token_ids": [5], "stream": True, "stream_options": {"x": 1}}),
        (CHAT, {"messages": [], "stop": ["a"], "stop_token_ids": None, "stream_options": None}),
        ("/v1/messages", {"messages": [], "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 8}}),
        ("/v1/messages", {"messages": [], "max_tokens": 9, "thinking": {"type": "adaptive"}, "stop_sequences": ["a"]}),
        ("/v1/responses", {"input": "x", "truncation": "disabled"}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function", "name": "mcp"}, {"type": "custom"}, 5]}),
        ("/v1/responses", {"input": "x", "tools": Unread(memoryview(b'[{"type": "function"}]'), 0)}),
        (CHAT, {"messages": [], "tools": [{"type": "mcp"}]}),
        (COMPLETIONS, {"prompt": "x", "echo": True}),
        (COMPLETIONS, {"prompt": ["one"]}),
        (COMPLETIONS, {"prompt": [1, 2, 3]}),
        (COMPLETIONS, {"prompt": [[1, 2, 3]]}),
    ],
)
def test_requests_that_can_be_split(path: str, body: dict[str, Any]) -> None:
    assert why_not_split(path, body) is None


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("value", [None, {"remote_host": "10.0.0.1"}, "text", []])
def test_a_clients_own_handoff_is_taken_out(name: str, value: object) -> None:
    body = {"model": "m", name: value, "vllm_xargs": {name: value, "keep": 1}}
    assert without_handoff(body)
    assert body == {"model": "m", "vllm_xargs": {"keep": 1}}


def test_usage_is_asked_of_decode_only_for_streams() -> None:
    assert decode({"stream": True})["stream_options"] == {"include_usage": True}
    assert "stream_options" not in decode({"stream": False})


def test_usage_is_asked_without_turning_on_what_the_client_has_off() -> None:
    made = decode({"stream": True, "stream_options": {"continuous_usage_stats": True, "x": 1}})
    assert made["stream_options"] == {"continuous_usage_stats": False, "x": 1, "include_usage": True}


@pytest.mark.parametrize(
    "options",
    [
        {"include_usage": ""},
        {"include_usage": []},
        {"include_usage": "no"},
        {"continuous_usage_stats": "sometimes"},
        {"continuous_usage_stats": {}},
        "text",
        [],
        False,
    ],
)
def test_stream_options_that_the_engine_may_refuse_reach_it_as_they_came(options: object) -> None:
    body = {"stream": True, "stream_options": options}
    made = DecodeBody(json.dumps(body).encode(), body, touched=False, counts_by_usage=True)
    assert not made.usage_is_ours(forced=False)
    assert loaded(made.sendable(None, usage_forced=False))["stream_options"] == options


def test_a_client_that_asks_for_usage_gets_its_own_options() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"stream": True, "stream_options": options}
    made = DecodeBody(json.dumps(body).encode(), body, touched=False, counts_by_usage=True)
    assert not made.usage_is_ours(forced=False)
    assert loaded(made.sendable(None, usage_forced=False))["stream_options"] == options


def test_no_usage_is_asked_of_a_server_that_tells_it_to_everybody() -> None:
    raw = b'{"stream": true}'
    made = DecodeBody(raw, json.loads(raw), touched=False, counts_by_usage=True)
    assert made.usage_is_ours(forced=False)
    assert not made.usage_is_ours(forced=True)
    assert made.sendable(None, usage_forced=True) == raw


def test_untouched_bodies_keep_their_bytes() -> None:
    raw = b'{ "model" : "m", "messages":[ ] , "x": 1.0e5}'
    made = DecodeBody(raw, json.loads(raw), touched=False, counts_by_usage=True).sendable(HANDOFF, usage_forced=False)
    assert isinstance(made, bytes)
    assert made.startswith(raw[:-1])


def test_an_empty_object_has_no_place_to_splice() -> None:
    assert decode({}, raw=b"{ }") == {"kv_transfer_params": HANDOFF}


def test_what_the_engine_reads_is_read_here() -> None:
    assert parse(b'{"a": "\\ud800"}') == {"a": "\ud800"}
    assert parse(b'{"a": Infinity}')["a"] == float("inf")


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**256 - 1, 2**63, -0.0, 1e400, 0.1234567890123456789, 10**18])
def test_a_number_is_the_same_for_prefill_as_for_decode(number: float) -> None:
    """In a tool's schema it stands in the prompt: another one there ends the decode engine."""
    body = {"model": "m", "tools": [{"function": {"parameters": {"maximum": number}}}]}
    raw = json.dumps(body).encode()
    rebuilt = DecodeBody(raw, parse(raw), touched=True, counts_by_usage=True).sendable(HANDOFF, usage_forced=False)
    for made in (prefill_body(CHAT, parse(raw)), rebuilt):
        assert json.dumps(loaded(made)["tools"]) == json.dumps(json.loads(raw)["tools"])


@given(st.integers())
def test_any_whole_number_is_read_as_the_engine_reads_it(number: int) -> None:
    assert parse(b'{"a": %d}' % number) == {"a": number}


@pytest.mark.parametrize("numeral", ["1e400", "-1E400", "1.7976931348623159e308", "NaN", "Infinity", "-Infinity"])
def test_what_is_beyond_any_number_stays_so_for_prefill(numeral: str) -> None:
    raw = b'{"tools": [{"maximum": %b}]}' % numeral.encode()
    assert json.dumps(loaded(prefill_body(CHAT, parse(raw)))["tools"]) == json.dumps(json.loads(raw)["tools"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-le"])
def test_any_encoding_of_unicode_is_read(encoding: str) -> None:
    body = '{"model": "ä\ud800"}'
    assert in_utf8(body.encode(encoding, "surrogatepass")) == body.encode("utf-8", "surrogatepass")


def test_what_is_no_unicode_stays_as_it_is() -> None:
    for raw in (b"\xff\xfe\x00", b"\x00\x00\x00", b"", bytearray(b"{}")):
        assert in_utf8(raw) == raw


@pytest.mark.parametrize(
    ("path", "body", "answers"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 3}, 3),
        (CHAT, {"n": "3"}, 0),
        (CHAT, {"n": 10**9}, 0),
        (CHAT, {"n": -1}, 0),
        (CHAT, {"prompt": ["a", "b"]}, 1),
        (COMPLETIONS, {"prompt": "a"}, 1),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": [1.0, 2]}, 0),
        (COMPLETIONS, {"prompt": ["1", 2]}, 0),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 4),
        (COMPLETIONS, {"prompt": [[1], [2], [3]]}, 3),
        (COMPLETIONS, {"prompt": "a", "prompt_embeds": "eA=="}, 0),
    ],
)
def test_how_many_answers_share_a_stream(path: str, body: dict[str, Any], answers: int) -> None:
    assert answers_of(path, body) == answers


def test_lone_surrogates_and_infinities_survive_to_prefill() -> None:
    made = prefill_body(CHAT, parse(b'{"prompt": "\\ud800", "temperature": Infinity}'))
    assert isinstance(made, bytes)
    assert b"\\ud800" in made
    assert b"Infinity" in made


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b'"x"', b"\xff", b"[" * 100000])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(NotJson):
        parse(raw)
