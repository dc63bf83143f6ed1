"""Token counts as the engines report them, in any of their APIs' words.

A decode server takes every prompt token from outside and says they were cached, or repeats what the prefill server
said; what was reused is known to the prefill server alone, so its figure is the one that clients see.
"""

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


def read_usage(raw: object) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    details = raw.get("prompt_tokens_details") or raw.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else raw.get("cache_read_input_tokens")
    return Usage(
        _count(raw.get("prompt_tokens", raw.get("input_tokens"))),
        _count(raw.get("completion_tokens", raw.get("output_tokens"))),
        _count(cached),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def cached_tokens(value: object) -> int | None:
    return _count(value)


def with_cached_tokens(body: bytes, answer: dict[str, Any], cached: int) -> bytes:
    """The body with the prefill server's count of cached tokens, or as it was when it says so already or says none."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return body
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, dict) and details.get("cached_tokens") not in (None, cached):
            changed = {**usage, name: {**details, "cached_tokens": cached}}
            return orjson.dumps({**answer, "usage": changed})
    return body
