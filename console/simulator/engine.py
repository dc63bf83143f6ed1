"""The engine: runs the step model, holds the KV, hands it off and receives it. Asleep while there is no work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from zlib import crc32

from .contracts import EngineConfig, EngineRequest, Output, Sink
from .counting import StatsLog, Times, count_finished, count_prompt
from .faults import Faults
from .handoff import EngineFatal, HandOff, Message, TransferFailed
from .kv import BlockPool
from .lending import Lender
from .loading import Loader
from .loglines import ENGINE, Line, Log
from .metrics import EngineMetrics
from .steps import Scheduler, Sequence, Step
from .text import block_hashes, tokens_seed


@dataclass(eq=False, slots=True)
class _Live:
    """A request in the engine."""

    request: EngineRequest
    sequence: Sequence
    sink: Sink
    times: Times
    seed: int
    # Set until the KV has arrived or is not to be expected any more.
    hand_off: HandOff | None = None
    external_tokens: int = 0
    # As P reported it: what usage tells when the KV came from there.
    remote_cached_tokens: int | None = None
    aborted: bool = False
    load: asyncio.Task[None] | None = None
    prompt_counted: bool = False
    # The hand-off lacks what a transfer needs: nothing ever happens, until the client leaves.
    hung: bool = False

    @property
    def cached_tokens(self) -> int:
        remote = self.remote_cached_tokens
        return self.sequence.cached_tokens if remote is None else remote


class Engine:
    def __init__(self, config: EngineConfig, log: Log, on_death: Callable[[], None]) -> None:
        self.config = config
        self.log = log
        self.dead = False
        self.metrics = EngineMetrics(config.model_name, config.max_model_len, config.connector)
        self.pool = BlockPool(config.blocks, config.identity.block_size)
        self.scheduler = Scheduler(self.pool, config.token_budget, config.max_sequences)
        self._on_death = on_death
        self._closers: list[Callable[[], None]] = []
        self._faults = Faults()
        self._wake = asyncio.Event()
        self._lender = Lender(config, self.pool, self.metrics, log, self._wake.set)
        self._loader = Loader(config, self.metrics)
        self._stats_log = StatsLog(self)
        self._live: dict[str, _Live] = {}
        self._by_sequence: dict[Sequence, _Live] = {}
        self._paused = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._describe_cache()

    def _describe_cache(self) -> None:
        identity = self.config.identity
        self.metrics.describe_cache(
            {
                "block_size": str(identity.block_size),
                "cache_dtype": "auto",
                "enable_prefix_caching": str(self.config.prefix_caching),
                "kv_cache_max_concurrency": str(self.pool.count * identity.block_size / self.config.max_model_len),
                "kv_cache_size_tokens": str(self.pool.count * identity.block_size),
                "num_gpu_blocks": str(self.pool.count),
            }
        )

    # --- what the HTTP server calls (contracts.EngineLike)

    def start(self) -> None:
        self._spawn(self._run())

    def close_at_death(self, close: Callable[[], None]) -> None:
        self._closers.append(close)

    @property
    def unfinished(self) -> int:
        return len(self._live)

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        sequence = Sequence(
            request_id=request.request_id,
            prompt_tokens=len(request.tokens),
            hashes=block_hashes(request.tokens, self.pool.block_size, request.salt),
            max_tokens=request.max_tokens,
            skip_cache=request.local_prompt or not self.config.prefix_caching,
        )
        live = _Live(request, sequence, sink, Times(time.monotonic()), tokens_seed(request.tokens))
        self._live[request.request_id] = live
        self._by_sequence[sequence] = live
        try:
            self._read_hand_off(live)
        except EngineFatal as error:
            asyncio.get_running_loop().call_soon(partial(self.die, str(error)))
            return
        except (KeyError, ValueError):
            # vLLM's request waits for a transfer that never begins; the engine falls over its clean-up (`abort`).
            live.hung = True
            return
        self.scheduler.add(sequence)
        self._wake.set()
        self._stats_log.watch()

    def abort(self, request_id: str) -> None:
        """The client has left. A running sequence goes at the end of its step."""
        live = self._live.get(request_id)
        if live is None or self.dead:
            return
        if live.hung:
            self.die("KeyError: 'remote_engine_id'")
            return
        live.aborted = True
        if live.load is not None:
            live.load.cancel()
        if live.hand_off is not None:
            self._loader.give_up(live.hand_off)
        if live.sequence not in self.scheduler.running:
            self._drop(live)

    def stop(self, request_id: str) -> None:
        """The server has found a stop string: no further token, counted as `stop`."""
        live = self._live.get(request_id)
        if live is not None:
            count_finished(self.metrics, live.request, live.sequence, live.times, "stop", time.monotonic())
            live.aborted = True

    def release(self, params: Message) -> None:
        """A request with this hand-off was refused: the prefill server need not keep its blocks."""
        try:
            hand_off = HandOff.from_params(params)
        except (EngineFatal, KeyError, ValueError):
            return
        if self.config.connector:
            self._loader.tell_done(hand_off)

    def set_faults(self, faults: Faults) -> None:
        self._faults = self._lender.faults = self._loader.faults = faults

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._wake.set()

    def reset_prefix_cache(self) -> None:
        self.pool.forget_cache()

    def answer_peer(self, message: Message) -> Message | None:
        return self._lender.answer_peer(message)

    async def metrics_text(self) -> str:
        metrics, scheduler = self.metrics, self.scheduler
        metrics.running.set(len(scheduler.running))
        metrics.waiting.set(len(scheduler.waiting) + len(scheduler.arriving))
        metrics.waiting_capacity.set(len(scheduler.waiting))
        metrics.waiting_deferred.set(len(scheduler.arriving))
        metrics.kv_usage.set(self.pool.usage)
        return metrics.registry.text()

    async def leases(self) -> int:
        return self._lender.lease_count

    def die(self, exception: str) -> None:
        """The engine's process ends as vLLM's does after an exception in its loop."""
        if self.dead:
            return
        self.dead = True
        self.log.error(ENGINE, "core.py:1012", "EngineCore encountered a fatal error.")
        self.log.error(ENGINE, "core.py:1012", f"Traceback (most recent call last):\n{exception}")
        for close in self._closers:
            close()
        for task in self._tasks:
            task.cancel()
        live, self._live = list(self._live.values()), {}
        for one in live:
            one.sink(Output(0, 0, "dead", 0, None))
        self._on_death()

    # --- the loop

    async def _run(self) -> None:
        while True:
            if self._paused or not self.scheduler.has_work:
                await self._rest()
                continue
            step = self.scheduler.plan()
            self._begin(step)
            if not step.tokens:
                await self._rest()
                continue
            await asyncio.sleep(step.length_s(self.config.costs))
            self._complete(step)

    async def _rest(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    def _begin(self, step: Step) -> None:
        now = time.monotonic()
        self._loader.tell_given_up()
        for sequence in step.preempted:
            self.metrics.preemptions.add()
            self._by_sequence[sequence].times.preemptions += 1
        for sequence in step.fetching:
            live = self._by_sequence[sequence]
            live.times.scheduled = now
            live.load = self._spawn(self._load(live))
        for sequence in step.admitted:
            live = self._by_sequence[sequence]
            live.times.scheduled = live.times.scheduled or now
            self._count_prompt(live)

    def _count_prompt(self, live: _Live) -> None:
        if live.prompt_counted:
            return
        live.prompt_counted = True
        count_prompt(self.metrics, live.sequence, live.external_tokens, self.config.prefix_caching)

    def _complete(self, step: Step) -> None:
        now = time.monotonic()
        self.metrics.iteration_tokens.observe(sum(step.tokens.values()))
        for sequence, count in step.tokens.items():
            live = self._by_sequence.get(sequence)
            if live is None:
                continue
            if live.aborted:
                self._drop(live)
                continue
            sequence.computed += count
            if sequence.computed == sequence.length:
                self._emit(live, now)

    def _emit(self, live: _Live, now: float) -> None:
        sequence, times = live.sequence, live.times
        if sequence.generated == 0:
            self._begin_answer(live, now)
        else:
            self.metrics.itl.observe(now - times.last_token)
        times.last_token = now
        sequence.generated += 1
        self.metrics.generation_tokens.add()
        if sequence.generated < sequence.max_tokens:
            live.sink(Output(1, live.seed, None, live.cached_tokens, None))
            if live.aborted:
                self._drop(live)
            return
        reason = live.request.final_reason
        count_finished(self.metrics, live.request, sequence, times, reason, now)
        live.sink(Output(1, live.seed, reason, live.cached_tokens, self._end(live)))

    def _begin_answer(self, live: _Live, now: float) -> None:
        if not live.external_tokens:
            self._write_prompt(live.sequence, live.sequence.hashes)
        live.times.first_token = now
        live.seed = self._seed(live)
        self.metrics.ttft.observe(now - live.times.arrived)

    def _write_prompt(self, sequence: Sequence, contents: list[int]) -> None:
        size = self.pool.block_size
        first = sequence.cached_tokens // size
        full = sequence.prompt_tokens // size - first if self.config.prefix_caching else 0
        self.pool.write(sequence.blocks[first:], sequence.hashes[first:], contents[first:], full)

    def _seed(self, live: _Live) -> int:
        """That of the prompt if the blocks hold its KV, another one if they hold something else."""
        sequence = live.sequence
        held = [self.pool.content(block) for block in sequence.blocks[: len(sequence.hashes)]]
        if held == sequence.hashes:
            return tokens_seed(live.request.tokens)
        return crc32(repr(held).encode())

    def _end(self, live: _Live) -> dict[str, Any] | None:
        """Takes a finished request out; the blocks of a prefill stay under a lease."""
        blocks = self._take_out(live)
        kv = live.request.kv
        if self.config.connector and kv and kv.get("do_remote_decode"):
            return self._lender.lend(live.sequence, blocks)
        self.pool.release(blocks)
        return None

    def _take_out(self, live: _Live) -> list[int]:
        self._live.pop(live.request.request_id, None)
        self._by_sequence.pop(live.sequence, None)
        return self.scheduler.remove(live.sequence)

    def _drop(self, live: _Live) -> None:
        self.pool.release(self._take_out(live))
        self._wake.set()

    # --- KV from outside

    def _read_hand_off(self, live: _Live) -> None:
        kv = live.request.kv
        if not (self.config.connector and kv and kv.get("do_remote_prefill")) or self._faults.drop_kv:
            return
        if live.request.local_prompt:
            self.release(kv)
            return
        live.hand_off = HandOff.from_params(kv)
        live.sequence.remote = True
        self._loader.expect(live.hand_off)

    async def _load(self, live: _Live) -> None:
        sequence, hand_off = live.sequence, live.hand_off
        assert hand_off is not None
        try:
            contents = await self._loader.load(sequence, live.request, hand_off)
        except EngineFatal as error:
            self.die(str(error))
            return
        except TransferFailed as error:
            live.hand_off = None
            self._fail_load(live, str(error))
            return
        live.hand_off = None
        live.external_tokens = sequence.prompt_tokens - sequence.cached_tokens
        live.remote_cached_tokens = hand_off.cached_tokens
        self._write_prompt(sequence, contents)
        self.scheduler.arrived(sequence, sequence.prompt_tokens - 1)
        self._wake.set()

    def _fail_load(self, live: _Live, why: str) -> None:
        sequence = live.sequence
        self.log.error(ENGINE, "base_worker.py:2210", why)
        affected = sequence.prompt_tokens - sequence.cached_tokens
        if self.config.recompute:
            text = f"Recovered from KV load failure: 1 request(s) rescheduled ({affected} tokens affected)."
            self.log.write(Line(ENGINE, "scheduler.py:3349", text, "WARNING"))
            self.scheduler.arrived(sequence, sequence.cached_tokens)
            self._wake.set()
            return
        text = (
            f"Failing 1 request(s) due to KV load failure (failure_policy=fail, {affected} tokens affected). "
            f"Request IDs: {{'{sequence.request_id}'}}"
        )
        self.log.error(ENGINE, "scheduler.py:3340", text)
        self.metrics.finished["error"].add()
        self._drop(live)
        live.sink(Output(0, 0, "error", 0, None))

    # --- tasks

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.die(f"{type(task.exception()).__name__}: {task.exception()}")
