"""Whether what a server answered makes it ready, and a pair usable. Pure: bodies and counters in, a problem out.

Problems are sentences for the card of the server; None means that the check passed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console.launch.contracts import EngineSample

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
SHARE_FROM_OUTSIDE = 0.5
"""Of the canary's prompt; a last partial block may be computed again, other traffic may add to the counters."""

DECODE_LATER: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a prefill request carries so that its KV is kept for a decode server."""


@dataclass(frozen=True)
class ModelFacts:
    max_model_len: int | None = None
    problem: str | None = None


def retry_in_s(attempts: int) -> float:
    """1, 2, 4 … 60 s after so many attempts without success."""
    return float(min(FIRST_RETRY_S * 2 ** min(attempts, 10), LAST_RETRY_S))


def model_facts(body: Any, served_model_name: str) -> ModelFacts:
    """From the answer of /v1/models."""
    models = body.get("data") if isinstance(body, dict) else None
    if not isinstance(models, list):
        return ModelFacts(problem="/v1/models does not answer with a list of models")
    for model in models:
        if isinstance(model, dict) and model.get("id") == served_model_name:
            length = model.get("max_model_len")
            return ModelFacts(max_model_len=length if isinstance(length, int) else None)
    names = ", ".join(str(model.get("id")) for model in models if isinstance(model, dict)) or "nothing"
    return ModelFacts(problem=f"it serves {names} instead of {served_model_name}")


def completion_problem(body: Any) -> str | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices:
        return "its first completion came without choices"
    return None


def has_usage(events: str) -> bool:
    """Of a stream: whether one of its events tells the usage."""
    return any(_tells_usage(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: "))


def _tells_usage(event: str) -> bool:
    try:
        chunk = json.loads(event)
    except ValueError:
        return False
    return isinstance(chunk, dict) and bool(chunk.get("usage"))


def text_of(body: Any) -> str:
    """Of the first choice of a completion; empty when there is none."""
    choices = body.get("choices") if isinstance(body, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else ""


def handoff_problem(body: Any) -> str | None:
    """From a prefill server's answer to a canary."""
    params = body.get("kv_transfer_params") if isinstance(body, dict) else None
    if not isinstance(params, dict):
        return "the prefill server handed nothing over (no kv_transfer_params in its answer)."
    if not params.get("remote_block_ids"):
        return "the prefill server handed no blocks over."
    return None


def prompt_tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


def kv_came(before: EngineSample, after: EngineSample, tokens: int) -> bool:
    return after["external_kv_tokens"] - before["external_kv_tokens"] >= SHARE_FROM_OUTSIDE * tokens


def transfer_problem(before: EngineSample, after: EngineSample, tokens: int) -> str | None:
    """From the decode server's counters around a canary of `tokens` prompt tokens."""
    came = after["external_kv_tokens"] - before["external_kv_tokens"]
    failed = after["failed_transfers"] - before["failed_transfers"]
    if kv_came(before, after, tokens):
        return None
    why = f", {failed:.0f} transfers failed" if failed > 0 else ""
    return f"the decode server took {came:.0f} of {tokens} prompt tokens from the prefill server{why}."


def is_clear(before: EngineSample, after: EngineSample, tokens: int) -> bool:
    """Whether the counters can be about the canary alone: other traffic would also have had prompts computed there."""
    computed = after["local_compute_tokens"] - before["local_compute_tokens"]
    return computed < SHARE_FROM_OUTSIDE * tokens


@dataclass(frozen=True)
class Transfer:
    """Means over the transfers seen around a canary; None where the engine does not count them."""

    ms: float | None
    kv_bytes: int | None


def transfer_between(before: EngineSample, after: EngineSample) -> Transfer:
    count = after["transfer_count"] - before["transfer_count"]
    if count <= 0:
        return Transfer(None, None)
    seconds = after["transfer_seconds"] - before["transfer_seconds"]
    kv_bytes = after["transfer_bytes"] - before["transfer_bytes"]
    return Transfer(round(1000 * seconds / count, 3), round(kv_bytes / count))
