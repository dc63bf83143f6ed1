"""The router before simulated engines, which refuse and lose what the real ones refuse and lose."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from routing.table import Policy, Server
from tests.comparing import differences
from tests.routing.scripted import Client, Seen, Site, Wire, site, streams, until
from tests.simulator.harness import SimulatedServer
from tests.waiting import LIMIT_S

LONG = " ".join(f"word{number}" for number in range(400))
MESSAGES = [{"role": "user", "content": LONG}]
SHARE_OF_ONE = 0.0031
"""Of the simulated server's cache, at most, for one such prompt. Where the client's leaving and the prefill server's
answer cross on their way, the server keeps the cache of a request that nobody knows to be done until its lease ends."""


@dataclass
class Pair:
    place: Site
    prefill: SimulatedServer
    decode: SimulatedServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place.port}"

    def external_tokens(self) -> float:
        return self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")

    def handoffs_kept(self) -> float:
        return self.prefill.metric("vllm:kv_cache_usage_perc")


@asynccontextmanager
async def pair(
    policy: Policy | None = None, max_model_len: int = 32768, flags: Sequence[str] = (), forces_usage: bool = False
) -> AsyncIterator[Pair]:
    args = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--max-model-len", str(max_model_len), *flags]
    async with (
        SimulatedServer("prefill", name="m", args=args) as prefill,
        SimulatedServer("decode", name="m", args=args) as decode,
    ):
        servers = [
            Server("P1", "P1", "prefill", prefill.url, max_model_len=max_model_len),
            Server("D1", "D1", "decode", decode.url, max_model_len=max_model_len, forces_usage=forces_usage),
        ]
        async with site({}) as place:
            place.publish(policy, servers=servers)
            yield Pair(place, prefill, decode)


async def test_the_prompts_cache_goes_from_prefill_to_decode() -> None:
    async with pair() as both:
        for stream in (True, False):
            answer = await both.place.chat(messages=MESSAGES, stream=stream, max_tokens=8)
            assert (answer.status, answer.headers["x-switchyard-route"]) == (200, "split")
        assert both.external_tokens() > 400
        await until(lambda: both.handoffs_kept() == 0)
        records = await both.place.records.wait(2)
    assert [record.completion_tokens for record in records] == [8, 8]


async def test_requests_of_every_kind_are_served() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    kinds: list[dict[str, object]] = [
        {"min_tokens": 4},
        {"max_completion_tokens": 5},
        {"stop": ["zzz"]},
        {"n": 2, "temperature": 1},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"tools": tools},
        {"tools": tools, "tool_choice": "required", "max_tokens": 64},
        {"logprobs": True},
    ]
    async with pair() as both:
        for kind in kinds:
            answer = await both.place.chat(**({"messages": MESSAGES, "max_tokens": 8} | kind))
            assert answer.status == 200, (kind, answer.body)


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STREAMED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES}),
    (CHAT, {"messages": MESSAGES, "stream_options": {"include_usage": False}}),
    (CHAT, {"messages": MESSAGES, "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": MESSAGES, "n": 3, "temperature": 1, "seed": 7}),
    (COMPLETIONS, {"prompt": "one"}),
    (COMPLETIONS, {"prompt": ["one", "two"]}),
]


@pytest.mark.parametrize("forced", [False, True])
async def test_a_streams_end_is_the_servers_own_for_any_number_of_answers(forced: bool) -> None:
    """With its fingerprint in each last event or in the usage, and with the usage that the server sends unasked."""
    flags = ["--enable-force-include-usage"] if forced else []
    async with pair(flags=flags, forces_usage=forced) as both, httpx.AsyncClient(timeout=LIMIT_S) as client:
        for path, kind in STREAMED:
            body = {"model": "m", "max_tokens": 4, "stream": True, **kind}
            direct, routed = [await client.post(f"{url}{path}", json=body) for url in (both.decode.url, both.url)]
            assert differences(direct, routed) == [], kind
            assert "system_fingerprint" in routed.text


@pytest.mark.parametrize(
    "most", ["115792089237316195423570985008687907853269984665640564039457584007913129639935", "1e999"]
)
async def test_a_number_of_any_size_in_a_tool_is_in_the_prompt_of_both(most: str) -> None:
    function = {"name": "f", "parameters": {"maximum": "MOST"}}
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 8, "tools": [{"type": "function", "function": function}]}
    raw = json.dumps(body).replace('"MOST"', most)
    async with pair() as both:
        answer = await both.place.post(raw.encode())
        assert (answer.status, answer.headers["x-switchyard-route"]) == (200, "split")
        assert both.external_tokens() + 1 >= answer.json["usage"]["prompt_tokens"]


async def test_a_forced_tool_stands_in_the_prompt_of_prefill_too() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    flags = ["--exclude-tools-when-tool-choice-none"]
    async with pair(flags=flags) as both:
        answer = await both.place.chat(messages=MESSAGES, tools=tools, tool_choice="required", max_tokens=64)
        assert (answer.status, answer.headers["x-switchyard-route"]) == (200, "split")
        # What it takes over and what it computes itself, the last token, are its own prompt.
        assert both.external_tokens() + 1 >= answer.json["usage"]["prompt_tokens"]


async def test_a_server_that_refuses_its_own_cut_tool_call_leaves_all_to_decode() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]

    async def refuses_what_is_cut(seen: Seen, wire: Wire) -> None:
        await wire.json({"error": {"message": "the call is no JSON", "type": "BadRequestError", "code": 400}}, 400)

    async with site({"P1": refuses_what_is_cut, "D1": streams()}) as place:
        forced = await place.chat(tools=tools, tool_choice="required")
        free = await place.chat(tools=tools, tool_choice="auto")
        assert place.router.circuits()["P1"].failures == 0
    assert (forced.status, forced.headers["x-switchyard-route"]) == (200, "fallback")
    assert "P1 refused a forced tool cut short" in forced.headers["x-switchyard-reason"]
    assert free.status == 400


async def test_a_forced_tool_without_a_parser_is_refused_in_the_engines_words() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"model": "m", "messages": MESSAGES, "tools": tools, "tool_choice": "required"}
    flags = ["--no-enable-auto-tool-choice"]
    async with pair(flags=flags) as both, httpx.AsyncClient(timeout=LIMIT_S) as client:
        direct, routed = [await client.post(f"{url}{CHAT}", json=body) for url in (both.decode.url, both.url)]
        assert direct.status_code == 400
        assert differences(direct, routed) == []
        assert 'tool_choice="required"' in routed.json()["error"]["message"]


async def test_clients_that_leave_in_every_phase_leave_no_cache_behind() -> None:
    async with pair() as both:
        for delay_s in (0.0, 0.005, 0.01, 0.02, 0.05, 0.1):
            async with Client(both.place.port) as client:
                await client.chat(messages=MESSAGES, stream=True, max_tokens=200)
                await asyncio.sleep(delay_s)
        records = await both.place.records.wait(6)
        crossed = sum(one.prefill_sent_ms is not None and one.prefill_answered_ms is None for one in records)
        most = crossed * SHARE_OF_ONE
        await until(lambda: both.handoffs_kept() <= most or both.place.router.loads()["P1"].handoffs)
        assert (await both.place.chat(messages=MESSAGES, max_tokens=4)).status == 200


async def test_a_refusal_by_the_engine_is_passed_on() -> None:
    async with pair() as both:
        answer = await both.place.chat(messages=MESSAGES, max_tokens=4, top_logprobs=3)
        assert answer.status == 400
        assert both.place.router.circuits()["D1"].failures == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": 4, "min_tokens": 9},
        {"stream_options": {"include_usage": True}},
        {"logprobs": True, "top_logprobs": 21},
    ],
)
async def test_what_only_decode_would_refuse_leaves_no_cache_on_prefill(fields: Any) -> None:
    async with pair() as both:
        answer = await both.place.chat(messages=MESSAGES, **fields)
        assert answer.status == 400
        (record,) = await both.place.records.wait(1)
        assert (record.reason, record.prefill_sent_ms) == ("out of range", None)
        assert both.handoffs_kept() == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"choice": []}},
        {"logit_bias": {"99999": 1}},
        {"allowed_token_ids": []},
        {"logprobs": True, "top_logprobs": 20, "allowed_token_ids": [99999]},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages"])
async def test_what_the_engine_refuses_is_told_as_one_server_tells_it(path: str, fields: Any, stream: bool) -> None:
    prompt = {"prompt": [5, 6, 7]} if path == "/v1/completions" else {"messages": MESSAGES}
    body = {"model": "m", **prompt, "max_tokens": 4, **fields, "stream": stream}
    async with pair() as both, httpx.AsyncClient(timeout=LIMIT_S) as client:
        direct, routed = [await client.post(f"{url}{path}", json=body) for url in (both.decode.url, both.url)]
        assert direct.status_code == (200 if stream else 400)
        assert differences(direct, routed) == []
        assert {view.failures for view in both.place.router.circuits().values()} == {0}
        assert both.handoffs_kept() == 0


@pytest.mark.parametrize(("limit", "requested"), [({}, "0 output"), ({"max_tokens": 30}, "30 output")])
async def test_a_prompt_of_megabytes_is_refused_by_prefill_in_its_own_words(limit: Any, requested: str) -> None:
    huge = [{"role": "user", "content": "The pump runs warm. " * 250_000}]
    async with pair(max_model_len=8192) as both:
        answer = await both.place.chat(messages=huge, **limit)
        assert [seen for seen in both.decode.requests() if seen["method"] == "POST"] == []
    assert answer.status == 400
    assert "maximum context length is 8192 tokens" in answer.json["error"]["message"]
    assert f"requested {requested} tokens" in answer.json["error"]["message"]
