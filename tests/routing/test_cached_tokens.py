"""A client reads how much of its prompt the prefill server had cached, in any API's words; not what decode says."""

import json
from typing import Any

import pytest

from routing.usage import Usage, read_usage, with_counts_of_prefill
from tests.routing.scripted import HANDOFF, Json, Script, Seen, Wire, chat_body, chat_chunk, site

CACHED, CREATED, PROMPT = 64, 48, 128
APIS: dict[str, tuple[Json, Json]] = {
    "/v1/chat/completions": (
        {
            "prompt_tokens": PROMPT,
            "prompt_tokens_details": {"cached_tokens": PROMPT, "created_cache_tokens": 0, "multimodal_tokens": None},
            "completion_tokens": 2,
        },
        {
            "prompt_tokens": PROMPT,
            "prompt_tokens_details": {
                "cached_tokens": CACHED,
                "created_cache_tokens": CREATED,
                "multimodal_tokens": None,
            },
            "completion_tokens": 2,
        },
    ),
    "/v1/responses": (
        {
            "input_tokens": PROMPT,
            "input_tokens_details": {"cached_tokens": PROMPT, "cached_tokens_per_turn": [PROMPT]},
            "output_tokens": 2,
        },
        {
            "input_tokens": PROMPT,
            "input_tokens_details": {"cached_tokens": CACHED, "cached_tokens_per_turn": [CACHED]},
            "output_tokens": 2,
        },
    ),
    "/v1/messages": (
        {"input_tokens": 0, "cache_read_input_tokens": PROMPT, "cache_creation_input_tokens": 0, "output_tokens": 2},
        {
            "input_tokens": PROMPT - CACHED - CREATED,
            "cache_read_input_tokens": CACHED,
            "cache_creation_input_tokens": CREATED,
            "output_tokens": 2,
        },
    ),
}
"""By path: the usage as the decode server says it, and as the prefill server does."""
ASKED = chat_body(input="hi", max_tokens=2)
"""What each of them can be asked."""


def answers_with(usage: Json, handoff: Json | None = None) -> Script:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.json({"id": "x", "usage": usage, "kv_transfer_params": handoff})

    return script


def streams_with(usage: Json) -> Script:
    """Of any API, which the path tells."""

    async def script(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        for kind, payload in stream_of(seen.path, usage):
            line = f"event: {kind}\n" if kind else ""
            await wire.chunk(f"{line}data: {json.dumps(payload)}\n\n".encode())
        await wire.end_stream(done=seen.path == "/v1/chat/completions")

    return script


def stream_of(path: str, usage: Json) -> list[tuple[str, Json]]:
    if path == "/v1/chat/completions":
        last = {"choices": [], "usage": usage}
        return [("", chat_chunk({"content": "a"}, "stop")), ("", last)]
    if path == "/v1/responses":
        events: list[Json] = [{"type": "response.created", "response": {"id": "r", "usage": None}}]
        events += [{"type": "response.output_text.delta", "delta": "a"}]
        events += [{"type": "response.completed", "response": {"id": "r", "usage": usage}}]
    else:
        events = [{"type": "message_start", "message": {"usage": {**usage, "output_tokens": 0}}}]
        events += [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}]
        events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}]
        events += [{"type": "message_stop"}]
    return [(event["type"], event) for event in events]


@pytest.mark.parametrize("path", APIS)
async def test_a_whole_answer_tells_what_prefill_had_cached(path: str) -> None:
    said, right = APIS[path]
    async with site({"P1": answers_with(right, HANDOFF), "D1": answers_with(said)}) as place:
        answer = await place.post(ASKED, path)
        record = await place.record()
    assert answer.json["usage"] == right
    assert (record.cached_tokens, record.prompt_tokens, record.completion_tokens) == (CACHED, PROMPT, 2)


@pytest.mark.parametrize("path", APIS)
async def test_a_stream_tells_what_prefill_had_cached(path: str) -> None:
    said, right = APIS[path]
    options = {"stream_options": {"include_usage": True}} if "chat" in path else {}
    async with site({"P1": answers_with(right, HANDOFF), "D1": streams_with(said)}) as place:
        answer = await place.post({**ASKED, "stream": True, **options}, path)
        record = await place.record()
    assert usages_in(answer.body) == usages_in_events(stream_of(path, right))
    assert (record.cached_tokens, record.prompt_tokens, record.completion_tokens) == (CACHED, PROMPT, 2)
    assert answer.body.count(b"event: ") == (0 if "chat" in path else len(stream_of(path, right)))


def usages_in(body: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    return usages_in_events([("", json.loads(line)) for line in lines])


def usages_in_events(events: list[tuple[str, Json]]) -> list[Any]:
    holders = [event.get("message") or event.get("response") or event for _, event in events]
    return [holder["usage"] for holder in holders if holder.get("usage")]


@pytest.mark.parametrize(
    ("usage", "prefill"),
    [
        ({"prompt_tokens": 9}, {"prompt_tokens_details": {"cached_tokens": 1}}),
        ({"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": 1}}),
        ({"prompt_tokens_details": {"cached_tokens": None}}, {"prompt_tokens_details": {"cached_tokens": 1}}),
        ({"prompt_tokens_details": {"cached_tokens": 1}}, {"prompt_tokens_details": {"cached_tokens": 1}}),
        ({"prompt_tokens_details": {"cached_tokens": 1}}, {"prompt_tokens_details": None}),
        ({"input_tokens": 9}, {"input_tokens": 8, "cache_read_input_tokens": 1}),
        ({"input_tokens": 9, "cache_read_input_tokens": 1}, {"input_tokens": 9, "cache_read_input_tokens": 1}),
    ],
)
def test_what_is_right_or_tells_nothing_stays_as_it_is(usage: Json, prefill: Json) -> None:
    assert with_counts_of_prefill(usage, prefill) is None


def test_cached_tokens_count_among_the_prompts_in_every_api() -> None:
    assert [read_usage(right) for _, right in APIS.values()] == [Usage(PROMPT, 2, CACHED)] * len(APIS)
