"""Flags of vLLM that change what it answers to everybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.simulator.harness import SimulatedServer
from tests.simulator.test_answers import TOOL, USER, chat, chat_events, events

PROMPT_ENDS = ["prompt_tokens", "total_tokens", "completion_tokens"]


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    flags = ["--enable-force-include-usage", "--exclude-tools-when-tool-choice-none", "--tool-call-parser", "hermes"]
    with SimulatedServer(args=flags) as started:
        yield started


def test_forced_usage_is_in_every_chunk_whatever_was_asked(server: SimulatedServer) -> None:
    for options in ({}, {"stream_options": {"include_usage": False}}):
        chunks = chat_events(server, max_tokens=3, **options)
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 3]
        assert chunks[-1]["choices"] == []
    chunks = events(server, "/v1/completions", prompt="hello", max_tokens=2)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]


@pytest.mark.parametrize(("most", "asked"), [("30", 30), ("-1", 500)])
def test_more_log_probabilities_may_be_allowed(most: str, asked: int) -> None:
    with SimulatedServer(args=["--max-logprobs", most]) as generous:
        assert chat(generous, max_tokens=1, logprobs=True, top_logprobs=asked)["choices"][0]["logprobs"]["content"]


def test_choosing_no_tool_takes_the_tools_out_of_the_prompt(server: SimulatedServer) -> None:
    def tokens(**body: Any) -> int:
        return int(chat(server, max_tokens=1, **body)["usage"]["prompt_tokens"])

    assert tokens(tools=[TOOL], tool_choice="none") == tokens()
    assert tokens(tools=[TOOL], tool_choice=None) > tokens()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_parser_of_tool_calls_alone_lets_no_tool_be_forced(server: SimulatedServer, choice: object) -> None:
    body = {"messages": USER, "tools": [TOOL], "tool_choice": choice}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 400
    assert "requires --tool-call-parser to be set" in answer.json()["error"]["message"]
