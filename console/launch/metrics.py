"""The few numbers the console keeps of a server's /metrics. Pure.

Read by hand: the engine's answer has some thousand lines, of which a general parser makes objects every two seconds.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from console.launch.contracts import EngineSample

_SUMMED = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:nixl_xfer_time_seconds_count": "transfer_count",
    "vllm:nixl_xfer_time_seconds_sum": "transfer_seconds",
    "vllm:nixl_bytes_transferred_sum": "transfer_bytes",
    "vllm:nixl_num_failed_transfers_total": "failed_transfers",
    "vllm:nixl_num_kv_expired_reqs_total": "expired_handoffs",
    "vllm:num_preemptions_total": "preemptions",
    'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': "external_kv_tokens",
    'vllm:prompt_tokens_by_source_total{source="local_compute"}': "local_compute_tokens",
}
_LARGEST = {"vllm:kv_cache_usage_perc": "kv_usage"}
"""Not a sum over the engines of a server: the fullest one is where requests wait."""
_STARTED = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)
_KV_TOKENS = re.compile(r'^vllm:cache_config_info\{(?:[^}]*,)?kv_cache_size_tokens="(\d+)"', re.MULTILINE)
_NIXL = re.compile(r"^vllm:nixl_", re.MULTILINE)
_LINE = re.compile(r"^(vllm:[a-z_]+)(?:\{([^}]*)\})? (\S+)", re.MULTILINE)
_SOURCE = re.compile(r'source="[^"]*"')


def engine_sample(text: str, at: float) -> EngineSample:
    """Names that the engine does not export count as zero: a server without connector has no hand-off metrics.

    `at`: Unix time of the scrape. Raises ValueError when this is no answer of a vLLM engine.
    """
    values: defaultdict[str, float] = defaultdict(float)
    known = False
    for name, value in _samples(text):
        known = True
        if field := _SUMMED.get(name):
            values[field] += value
        elif field := _LARGEST.get(name):
            values[field] = max(values[field], value)
    if not known:
        raise ValueError("no vllm: metrics in the answer")
    return _sample(values, at)


def process_started_at(text: str) -> float | None:
    """Unix time of its start by its own clock: another one means another process. None when it does not say."""
    found = _STARTED.search(text)
    return float(found[1]) if found else None


def kv_cache_tokens(text: str) -> int | None:
    found = _KV_TOKENS.search(text)
    return int(found[1]) if found else None


def has_nixl(text: str) -> bool:
    """An engine exports these series from its start on, and only with a NIXL connector."""
    return _NIXL.search(text) is not None


def _samples(text: str) -> Iterable[tuple[str, float]]:
    for name, labels, raw in _LINE.findall(text):
        source = _SOURCE.search(labels) if name == "vllm:prompt_tokens_by_source_total" else None
        try:
            yield (f"{name}{{{source[0]}}}" if source else name), float(raw)
        except ValueError:
            continue


def _sample(values: defaultdict[str, float], at: float) -> EngineSample:
    return EngineSample(
        at=at,
        running=int(values["running"]),
        waiting=int(values["waiting"]),
        kv_usage=values["kv_usage"],
        prompt_tokens=values["prompt_tokens"],
        generation_tokens=values["generation_tokens"],
        external_kv_tokens=values["external_kv_tokens"],
        local_compute_tokens=values["local_compute_tokens"],
        transfer_count=values["transfer_count"],
        transfer_seconds=values["transfer_seconds"],
        transfer_bytes=values["transfer_bytes"],
        failed_transfers=values["failed_transfers"],
        expired_handoffs=values["expired_handoffs"],
        preemptions=values["preemptions"],
    )
