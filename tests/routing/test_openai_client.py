"""The `openai` package works unmodified, streamed and not, and raises where it should."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.routing.scripted import (
    Script,
    Seen,
    Site,
    Wire,
    answers,
    chat_chunk,
    prefills,
    site,
    streams,
)


@asynccontextmanager
async def asked(scripts: dict[str, Script], **more: Any) -> AsyncIterator[tuple[openai.AsyncOpenAI, Site]]:
    async with site(scripts, **more) as place:
        url = f"http://127.0.0.1:{place.port}/v1"
        async with openai.AsyncOpenAI(api_key="key", base_url=url, max_retries=0) as client:
            yield client, place


MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def test_an_unstreamed_chat() -> None:
    async with asked({"P1": prefills, "D1": streams()}) as (client, _):
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == "abc"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


async def test_a_streamed_chat_with_and_without_usage() -> None:
    async with asked({"P1": prefills, "D1": streams()}) as (client, _):
        plain = [
            chunk async for chunk in await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        ]
        options: Any = {"include_usage": True}
        counted = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, stream_options=options
            )
        ]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain) == "abc"
    assert counted[-1].usage is not None
    assert counted[-1].usage.completion_tokens == 3


async def test_a_stream_that_breaks_raises() -> None:
    async def breaks(seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        wire.reset()

    async with asked({"N1": breaks}) as (client, _):
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="closed the connection"):
            _ = [chunk async for chunk in stream]


async def test_refusals_raise_by_their_status() -> None:
    bad = answers(400, {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}})
    async with asked({"N1": bad}) as (client, _):
        with pytest.raises(openai.BadRequestError, match="too long"):
            await client.chat.completions.create(model="m", messages=MESSAGES)
        with pytest.raises(openai.NotFoundError, match="Served: m"):
            await client.chat.completions.create(model="other", messages=MESSAGES)


async def test_models_are_listed() -> None:
    cards = answers(200, {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "vllm"}]})
    async with asked({"N1": cards}) as (client, _):
        assert [model.id async for model in client.models.list()] == ["m"]
