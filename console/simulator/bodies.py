"""Reads the JSON bodies of requests that generate, and refuses what vLLM refuses, in its words."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

from . import fields, verifying
from .adapters import Adapters
from .refusals import Refused, invalid, missing
from .text import CHARACTERS_PER_TOKEN, EOS_TOKEN_ID, json_for_schema, tokenize
from .wire import HttpRequest

Body = dict[str, Any]
_dumped = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True)
class ServerFacts:
    """What the checks need to know of the server."""

    names: tuple[str, ...]
    adapters: Adapters
    max_model_len: int
    max_logprobs: int
    auto_tools: bool
    tool_parser: str | None
    answer_tokens: int
    force_usage: bool
    excludes_tools: bool
    """A choice of no tool takes the tools out of the prompt."""


@dataclass
class Wanted:
    """One request that generates, whatever its API."""

    body: Body
    model: str
    prompts: list[list[int]]
    prompt_texts: list[str]
    max_tokens: int
    # None: no end of its own but for `max_tokens`.
    natural_tokens: int | None
    n: int = 1
    min_tokens: int = 0
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stop: list[str] = field(default_factory=list)
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    echo: bool = False
    logprobs: int | None = None
    seed: int = 0
    forced_text: str | None = None
    tool_name: str | None = None
    tool_is_named: bool = False
    kv: dict[str, Any] | None = None
    salt: int = 0
    local_prompt: bool = False
    return_token_ids: bool = False
    gives_ids: bool = False
    """It is the ids of its tokens that the answer consists of."""
    refusal: Refused | None = None
    """What the stream ends with, at once."""


def parse_json(request: HttpRequest) -> Body:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")
    try:
        body = json.loads(request.body)  # The engine's own reader, which keeps numbers of any size as they are.
    except (ValueError, RecursionError) as error:
        raise invalid("", "JSON decode error", "json_invalid", {}) from error
    if not isinstance(body, dict):
        raise invalid("", "Input should be a valid dictionary or object to extract fields from", "dict_type", body)
    return body


def common(body: Body, facts: ServerFacts) -> None:
    """The checks of read fields that all APIs share. Raises Refused."""
    model = body.get("model")
    if model and model not in facts.names and model not in facts.adapters:
        raise Refused(f"The model `{model}` does not exist.", "NotFoundError", "model", 404)
    temperature = body.get("temperature")
    if temperature is not None and not 0 <= temperature <= 2:
        rule = "non-negative" if temperature < 0 else "in [0, 2]"
        raise Refused(f"temperature must be {rule}, got {temperature}.", param="temperature", value=temperature)
    n = 1 if body.get("n") is None else body["n"]
    if n < 1:
        raise Refused(f"n must be at least 1, got {n}.")
    if n > 1 and temperature == 0:
        raise Refused(f"n must be 1 when using greedy sampling, got {n}.")


def answering_name(body: Body, facts: ServerFacts) -> str:
    """An adapter's own name, else the first of the model's, whichever of them was asked for."""
    name = body.get("model")
    return str(name) if name in facts.adapters else facts.names[0]


def check_stream_options(body: Body) -> None:
    if body.get("stream_options") and not body.get("stream"):
        raise Refused("Stream options can only be defined when `stream=True`.", param="stream_options")


def limits(limit: int | None, prompt_tokens: int, min_tokens: int, facts: ServerFacts) -> int:
    """The most tokens to generate. Raises Refused."""
    room = facts.max_model_len - prompt_tokens
    if limit is not None and limit < 1:
        raise Refused(f"max_tokens must be at least 1, got {limit}.", param="max_tokens", value=limit)
    if limit is not None and limit > facts.max_model_len:
        raise Refused(
            f"max_tokens={limit} cannot be greater than max_model_len={facts.max_model_len}. "
            "Please request fewer output tokens.",
            param="max_tokens",
            value=limit,
        )
    wanted = limit or 0
    if room < max(wanted, 1):
        raise Refused(
            f"This model's maximum context length is {facts.max_model_len} tokens. However, you requested {wanted} "
            f"output tokens and your prompt contains {prompt_tokens} input tokens, for a total of "
            f"{prompt_tokens + wanted} tokens. Please reduce the length of the input prompt or the number of "
            "requested output tokens.",
            param="input_tokens",
            value=prompt_tokens,
        )
    most = limit if limit is not None else room
    if min_tokens < 0:
        raise Refused(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > most:
        raise Refused(f"min_tokens must be less than or equal to max_tokens={most}, got {min_tokens}.")
    return most


def completion(body: Body, facts: ServerFacts) -> Wanted:
    check_stream_options(body)
    fields.check_logprobs(body, "logprobs")
    body = fields.read(body, fields.COMPLETION, fields.COMPLETION_NEVER_NULL)
    common(body, facts)
    texts, prompts = _prompts(body, facts)
    limit = body.get("max_tokens", 16)
    limit = 16 if limit is None else limit
    logprobs = body.get("logprobs")
    echoes_logprobs = bool(body.get("echo")) and logprobs is not None
    return _wanted(
        body,
        facts,
        prompts,
        texts,
        limit,
        echo=bool(body.get("echo")),
        logprobs=logprobs,
        local_prompt=body.get("prompt_logprobs") is not None or echoes_logprobs,
    )


def encode(text: str, facts: ServerFacts) -> list[int]:
    """Tokens; of a text that is too long anyway only their number counts, so that megabytes cost no time."""
    count = -(-len(text) // CHARACTERS_PER_TOKEN)
    return [0] * count if count > facts.max_model_len else tokenize(text)


def _prompts(body: Body, facts: ServerFacts) -> tuple[list[str], list[list[int]]]:
    prompt = body.get("prompt")
    if prompt == []:
        raise Refused("You must pass at least one prompt")
    if prompt is None or prompt == "":
        raise Refused("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    if isinstance(prompt, str):
        return [prompt], [encode(prompt, facts)]
    if isinstance(prompt, list) and all(isinstance(item, str) for item in prompt):
        return list(prompt), [encode(item, facts) for item in prompt]
    if isinstance(prompt, list) and all(_is_token(item) for item in prompt):
        return [""], [list(prompt)]
    if isinstance(prompt, list) and all(isinstance(item, list) and all(map(_is_token, item)) for item in prompt):
        return ["" for _ in prompt], [list(item) for item in prompt]
    raise invalid("prompt", "Input should be a valid string", "string_type", prompt)


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def chat(body: Body, facts: ServerFacts) -> Wanted:
    check_stream_options(body)
    fields.check_logprobs(body, "top_logprobs")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise Refused("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
    if body.get("messages") is None:
        raise missing("messages", body)
    body = fields.read(body, fields.CHAT)
    common(body, facts)
    tool_name, named = forced_tool(body, facts)
    if body.get("tool_choice") == "none" and facts.excludes_tools:
        body = {**body, "tools": None}
    text = render(body, facts)
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    logprobs = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
    return _wanted(
        body,
        facts,
        [encode(text, facts)],
        [text],
        limit,
        logprobs=logprobs,
        local_prompt=body.get("prompt_logprobs") is not None or bool(body.get("echo")),
        tool_name=tool_name,
        tool_is_named=named,
    )


def render(body: Body, facts: ServerFacts) -> str:
    """The chat template of the simulated model. Raises Refused."""
    messages, tools = body["messages"], body.get("tools")
    generation_prompt = bool(body.get("add_generation_prompt", True))
    if not messages:
        raise Refused("Cannot apply chat template to an empty conversation. Provide at least one message.")
    parts = []
    if tools:
        parts.append(f"<|tools|>{_dumped(tools)}\n")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise missing("messages.0.role", message if isinstance(message, dict) else {})
        parts.append(f"<|{message['role']}|>{_content(message, facts)}\n")
    return "".join(parts) + ("<|assistant|>" if generation_prompt else "")


def _content(message: Body, facts: ServerFacts) -> str:
    content = message.get("content")
    calls = _dumped(message["tool_calls"]) if message.get("tool_calls") else ""
    if content is None:
        return calls
    if isinstance(content, str):
        return content + calls
    if not isinstance(content, list):
        raise invalid("messages.0.content", "Input should be a valid string", "string_type", content)
    return "\n".join(_part(part, facts) for part in content) + calls


def _part(part: object, facts: ServerFacts) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise invalid("messages.0.content", "Input should be a valid dictionary", "dict_type", part)
    kind = part.get("type", "text")
    if kind in ("text", "input_text", "output_text", "refusal", "thinking"):
        return str(part.get("text", ""))
    if kind in ("tool_use", "tool_result"):
        return _dumped(part)
    raise Refused(f"{facts.names[0]} is not a multimodal model")


def forced_tool(body: Body, facts: ServerFacts) -> tuple[str | None, bool]:
    """The function that the answer has to call, and whether the client named it. Raises Refused."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        if choice not in (None, "none"):
            raise Refused("When using `tool_choice`, `tools` must be set.", param="tool_choice")
        return None, False
    choice = body.get("tool_choice", "auto")
    names = [tool.get("function", tool).get("name") for tool in tools if isinstance(tool, dict)]
    if choice in (None, "none"):
        return None, False
    can_call = facts.auto_tools and facts.tool_parser
    if choice == "auto":
        if not can_call:
            raise Refused('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        return None, False
    named = isinstance(choice, dict)
    name = choice.get("function", choice).get("name") if isinstance(choice, dict) else names[0]
    if name not in names:
        raise Refused(
            "The tool specified in `tool_choice` does not match any of the specified `tools`", param="tool_choice"
        )
    if not can_call:
        shown = f'function "{name}"' if named else f'"{choice}"'
        raise Refused(f"tool_choice={shown} requires --tool-call-parser to be set")
    return str(name), named


def _wanted(
    body: Body,
    facts: ServerFacts,
    prompts: list[list[int]],
    texts: list[str],
    limit: int | None,
    *,
    echo: bool = False,
    logprobs: int | None = None,
    local_prompt: bool = False,
    tool_name: str | None = None,
    tool_is_named: bool = False,
) -> Wanted:
    min_tokens = body.get("min_tokens") or 0
    longest = max(len(prompt) for prompt in prompts)
    most = limits(limit, longest, min_tokens, facts)
    refusal = verifying.refusal(body, prompts, logprobs, facts.max_logprobs)
    if refusal is not None and not body.get("stream"):
        raise refusal
    options = body.get("stream_options") or {}
    include_usage = bool(options.get("include_usage"))
    stop = body.get("stop") or []
    natural = _natural_tokens(body, facts, limit, min_tokens)
    sampled_seed = body.get("seed") if body.get("temperature") != 0 else None
    return Wanted(
        body=body,
        model=answering_name(body, facts),
        prompts=prompts,
        prompt_texts=texts,
        max_tokens=most,
        natural_tokens=natural,
        n=body.get("n") or 1,
        min_tokens=min_tokens,
        stream=bool(body.get("stream")),
        include_usage=include_usage or facts.force_usage,
        continuous_usage=(include_usage and bool(options.get("continuous_usage_stats"))) or facts.force_usage,
        stop=[stop] if isinstance(stop, str) else [item for item in stop if isinstance(item, str)],
        include_stop=bool(body.get("include_stop_str_in_output")),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        echo=echo,
        logprobs=logprobs,
        seed=crc32(str(sampled_seed).encode()) if sampled_seed is not None else 0,
        forced_text=_forced_text(body, tool_name),
        tool_name=tool_name,
        tool_is_named=tool_is_named,
        kv=body.get("kv_transfer_params"),
        salt=_salt(body, facts),
        local_prompt=local_prompt,
        return_token_ids=bool(body.get("return_token_ids")),
        refusal=refusal,
    )


def _salt(body: Body, facts: ServerFacts) -> int:
    """Caches of other adapters, and under other salts, are none for this prompt."""
    adapter = body["model"] if body.get("model") in facts.adapters else ""
    salt = body.get("cache_salt") or ""
    return crc32(f"{adapter}{salt}".encode()) if adapter or salt else 0


def _natural_tokens(body: Body, facts: ServerFacts, limit: int | None, min_tokens: int) -> int | None:
    if limit is not None or body.get("ignore_eos") or not facts.answer_tokens:
        return None
    return max(facts.answer_tokens, min_tokens)


def _forced_text(body: Body, tool_name: str | None) -> str | None:
    """The text that a grammar, or a strong bias towards the end, leaves no choice about."""
    bias = body.get("logit_bias") or {}
    if isinstance(bias, dict) and bias.get(str(EOS_TOKEN_ID), 0) >= 100 and not body.get("ignore_eos"):
        return ""
    if tool_name is not None:
        for tool in body["tools"]:
            function = tool.get("function", tool)
            if function.get("name") == tool_name:
                return json_for_schema(function.get("parameters") or function.get("input_schema") or {}, 7)
    wanted = body.get("response_format") or {}
    kind = wanted.get("type")
    if kind == "json_schema":
        return json_for_schema((wanted.get("json_schema") or {}).get("schema"), 7)
    if kind == "json_object":
        return json_for_schema(None, 7)
    outputs = body.get("structured_outputs") or {}
    if isinstance(outputs, dict) and outputs.get("choice"):
        return str(outputs["choice"][0])
    if isinstance(outputs, dict) and outputs.get("json"):
        schema = outputs["json"]
        return json_for_schema(json.loads(schema) if isinstance(schema, str) else schema, 7)
    return None


def embeddings(body: Body, facts: ServerFacts) -> dict[str, Any]:
    """Vectors of eight numbers, the same for the same text. Raises Refused."""
    body = fields.read(body, fields.POOLING)
    common(body, facts)
    texts = body.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts:
        raise missing("input", body)
    seeds = [crc32(str(text).encode()) for text in texts]
    data = [
        {"index": index, "object": "embedding", "embedding": [((seed >> (4 * i)) & 15) / 16 for i in range(8)]}
        for index, seed in enumerate(seeds)
    ]
    tokens = sum(len(tokenize(str(text))) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}
    return {"object": "list", "model": answering_name(body, facts), "data": data, "usage": usage}
