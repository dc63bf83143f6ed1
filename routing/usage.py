"""Token counts as the engines report them, in any of their APIs' words.

A decode server takes every prompt token from outside and says they were cached, or repeats what the prefill server
said; what was reused is known to the prefill server alone, so its figure is the one that clients see.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DETAILS = ("prompt_tokens_details", "input_tokens_details")
PER_TURN = "cached_tokens_per_turn"
CACHE_READ = "cache_read_input_tokens"


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


def read_usage(raw: object) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    details = _details(raw)
    cached = _count(raw[details].get("cached_tokens") if details else raw.get(CACHE_READ))
    return Usage(_prompt_tokens(raw), _count(raw.get("completion_tokens", raw.get("output_tokens"))), cached)


def _details(usage: Mapping[str, Any]) -> str | None:
    return next((name for name in DETAILS if isinstance(usage.get(name), dict)), None)


def _prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """The messages API counts what was cached beside its input tokens, the others among them."""
    counted = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    if counted is None:
        return None
    return counted + sum(_count(usage.get(name)) or 0 for name in (CACHE_READ, "cache_creation_input_tokens"))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def cached_tokens(value: object) -> int | None:
    return _count(value)


def with_cached_tokens(usage: Mapping[str, Any], cached: int) -> dict[str, Any] | None:
    """The usage with the prefill server's count of cached tokens; None when it says so already or says none."""
    details, read = _details(usage), _count(usage.get(CACHE_READ))
    if details is not None:
        inner = usage[details]
        if inner.get("cached_tokens") in (None, cached):
            return None
        return {**usage, details: {**inner, "cached_tokens": cached, **_per_turn(inner, cached)}}
    if read is None or read == cached:
        return None
    rest = (_count(usage.get("input_tokens")) or 0) + read - cached
    return {**usage, "input_tokens": max(0, rest), CACHE_READ: cached}


def _per_turn(details: Mapping[str, Any], cached: int) -> dict[str, list[int]]:
    """What is split is one turn."""
    turns = details.get(PER_TURN)
    return {PER_TURN: [cached]} if isinstance(turns, list) and len(turns) == 1 else {}
