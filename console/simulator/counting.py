"""What vLLM counts about a request, and the line that its engine logs while there is traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from dataclasses import dataclass
from typing import Protocol

from .contracts import EngineConfig, EngineRequest
from .kv import BlockPool
from .loglines import API, Log
from .metrics import EngineMetrics
from .steps import Scheduler, Sequence


@dataclass(slots=True)
class Times:
    """Monotonic seconds; 0 when not reached."""

    arrived: float
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    preemptions: int = 0


def count_prompt(metrics: EngineMetrics, sequence: Sequence, external: int, prefix_caching: bool) -> None:
    """Once per request, when its prompt is scheduled. `external` tokens came from another server."""
    local = sequence.cached_tokens
    computed = sequence.prompt_tokens - local - external
    if prefix_caching:
        metrics.prefix_queries.add(sequence.prompt_tokens)
        metrics.prefix_hits.add(local)
    metrics.prompt_tokens.add(sequence.prompt_tokens)
    metrics.prompt_tokens_cached.add(local + external)
    metrics.by_source["local_cache_hit"].add(local)
    metrics.by_source["external_kv_transfer"].add(external)
    metrics.by_source["local_compute"].add(computed)
    metrics.kv_computed.observe(computed)


def count_finished(
    metrics: EngineMetrics, request: EngineRequest, sequence: Sequence, times: Times, reason: str, now: float
) -> None:
    generated = max(1, sequence.generated)
    metrics.finished[reason].add()
    metrics.e2e.observe(now - times.arrived)
    metrics.queue.observe(times.scheduled - times.arrived)
    metrics.inference.observe(now - times.scheduled)
    metrics.prefill.observe(times.first_token - times.scheduled)
    metrics.decode.observe(now - times.first_token)
    if generated > 1:
        metrics.tpot.observe((now - times.first_token) / (generated - 1))
    metrics.request_prompt.observe(sequence.prompt_tokens)
    metrics.request_generation.observe(generated)
    metrics.max_generation.observe(generated)
    metrics.params_n.observe(request.n)
    metrics.params_max.observe(request.max_tokens)
    metrics.request_preemptions.observe(times.preemptions)


class _Counted(Protocol):
    config: EngineConfig
    metrics: EngineMetrics
    pool: BlockPool
    scheduler: Scheduler
    log: Log

    @property
    def unfinished(self) -> int: ...


class StatsLog:
    """A line every VLLM_LOG_STATS_INTERVAL seconds while there is traffic; no timer otherwise."""

    def __init__(self, engine: _Counted) -> None:
        self._engine = engine
        self._timer: asyncio.TimerHandle | None = None
        self._logged = (0.0, 0.0)

    def watch(self) -> None:
        interval_s = self._engine.config.log_interval_s
        if self._timer is None and interval_s > 0:
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._write)

    def _write(self) -> None:
        self._timer = None
        engine = self._engine
        tokens = (engine.metrics.prompt_tokens.value, engine.metrics.generation_tokens.value)
        rates = [(new - old) / engine.config.log_interval_s for new, old in zip(tokens, self._logged, strict=True)]
        self._logged = tokens
        engine.log.info(API, "loggers.py:320", stats_text(engine, rates[0], rates[1]))
        if any(rates) or engine.unfinished:
            self.watch()


def stats_text(engine: _Counted, prompt_rate: float, generation_rate: float) -> str:
    metrics, scheduler = engine.metrics, engine.scheduler
    text = (
        f"Engine 000: Avg prompt throughput: {prompt_rate:.1f} tokens/s, Avg generation throughput: "
        f"{generation_rate:.1f} tokens/s, Running: {_count(scheduler.running)}, Waiting: {_count(scheduler.waiting)}, "
        f"GPU KV cache usage: {100 * engine.pool.usage:.1f}%, "
        f"Prefix cache hit rate: {_percent(metrics.prefix_hits.value, metrics.prefix_queries.value)}"
    )
    if engine.config.connector:
        external = _percent(metrics.external_hits.value, metrics.external_queries.value)
        text += f", External prefix cache hit rate: {external}"
    return text


def _count(requests: Sized) -> str:
    return f"{len(requests)} reqs"


def _percent(hits: float, queries: float) -> str:
    return f"{100 * hits / queries if queries else 0:.1f}%"
