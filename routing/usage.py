"""Token counts as the engines report them, in any of their APIs' words.

A decode server takes every prompt token from outside and says they were cached, or repeats what the prefill server
said; what was reused is known to the prefill server alone, so its figure is the one that clients see.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")
OF_THE_CACHE: Final = ("cached_tokens", "created_cache_tokens", "cache_write_tokens", "cached_tokens_per_turn")
"""In those details."""
CACHED: Final = "cached_tokens"
"""In Cohere's API, beside the counts."""
CACHE_READ, CACHE_CREATION = "cache_read_input_tokens", "cache_creation_input_tokens"
BESIDE_THE_CACHE: Final = ("input_tokens", CACHE_READ, CACHE_CREATION)
"""In the messages API, whose input tokens are those that were neither read from the cache nor written to it."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


def read_usage(raw: object) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    tokens = raw.get("tokens")
    if isinstance(tokens, dict):
        return Usage(_count(tokens.get("input_tokens")), _count(tokens.get("output_tokens")), _count(raw.get(CACHED)))
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
    return counted + sum(_count(usage.get(name)) or 0 for name in (CACHE_READ, CACHE_CREATION))


def _count(value: object) -> int | None:
    """Cohere's API counts in fractions."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def cached_tokens(value: object) -> int | None:
    return _count(value)


def with_counts_of_prefill(usage: Mapping[str, Any], prefill: Mapping[str, Any]) -> dict[str, Any] | None:
    """The usage with what the prefill server says of its cache; None when it says so already, or says nothing of it.

    Both are of one request in one API; `prefill` is the usage of the prefill server's answer.
    """
    details = _details(usage)
    if details is not None and details == _details(prefill):
        inner = _replaced(usage[details], prefill[details], OF_THE_CACHE)
        return None if inner is None else {**usage, details: inner}
    if usage.get(CACHED) is not None:
        return _replaced(usage, prefill, (CACHED,))
    return _replaced(usage, prefill, BESIDE_THE_CACHE) if CACHE_READ in usage else None


def _replaced(told: Mapping[str, Any], prefill: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """Only what is told at all is told anew."""
    new = {name: prefill[name] for name in names if told.get(name) is not None and prefill.get(name) is not None}
    return {**told, **new} if any(told[name] != value for name, value in new.items()) else None
