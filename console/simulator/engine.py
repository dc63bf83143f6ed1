"""The engine: runs the step model, holds the KV, hands it off and fetches it. Asleep while there is no work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, TypeVar
from zlib import crc32

from .contracts import EngineConfig, EngineRequest, Output, Sink
from .counting import StatsLog, Times, count_finished, count_prompt
from .faults import Faults
from .handoff import EngineFatal, HandOff, Message, Peers, Received, TransferFailed
from .kv import BlockPool, Leases
from .loglines import ENGINE, Line, Log
from .metrics import EngineMetrics
from .steps import Scheduler, Sequence, Step
from .text import block_hashes, tokens_seed

T = TypeVar("T")


@dataclass(eq=False)
class _Live:
    """A request in the engine."""

    request: EngineRequest
    sequence: Sequence
    sink: Sink
    times: Times
    seed: int
    hand_off: HandOff | None = None
    external_tokens: int = 0
    aborted: bool = False
    fetch: asyncio.Task[None] | None = None
    prompt_counted: bool = False
    # The hand-off lacks what a transfer needs: nothing ever happens, until the client leaves.
    hung: bool = False


class Engine:
    def __init__(self, config: EngineConfig, log: Log, on_death: Callable[[], None]) -> None:
        self.config = config
        self.dead = False
        self.metrics = EngineMetrics(config.model_name, config.max_model_len, config.connector)
        self.pool = BlockPool(config.blocks, config.identity.block_size)
        self.lease_table = Leases(config.lease_s)
        self.faults = Faults()
        self.log = log
        self._on_death = on_death
        self.scheduler = Scheduler(self.pool, config.token_budget, config.max_sequences)
        self._live: dict[str, _Live] = {}
        self._by_sequence: dict[Sequence, _Live] = {}
        self._wake = asyncio.Event()
        self._paused = False
        self._lease_timer: asyncio.TimerHandle | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._stats_log = StatsLog(self)
        self._given_up: list[HandOff] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._peers = Peers(
            config.identity, config.handshake_timeout_s, config.enforce_hash, cleans_up=not config.recompute
        )
        self._closers: list[Callable[[], None]] = []

    # --- what the HTTP server calls

    def start(self) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._run()))

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
            self._later(partial(self.die, str(error)))
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
        if live.hand_off is not None and not live.external_tokens:
            # vLLM tells the prefill server at its next step, which an idle server never makes.
            self._given_up.append(live.hand_off)
        if live.fetch is not None:
            live.fetch.cancel()
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
        self._notify(hand_off, "done")

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._wake.set()

    def reset_prefix_cache(self) -> None:
        self.pool.forget_cache()

    async def metrics_text(self) -> str:
        metrics, scheduler = self.metrics, self.scheduler
        metrics.running.set(len(scheduler.running))
        waiting = len(scheduler.waiting) + len(scheduler.arriving)
        metrics.waiting.set(waiting)
        metrics.waiting_capacity.set(len(scheduler.waiting))
        metrics.waiting_deferred.set(len(scheduler.arriving))
        metrics.kv_usage.set(self.pool.usage)
        return metrics.registry.text()

    async def leases(self) -> int:
        return len(self.lease_table.by_request)

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
        for hand_off in self._given_up:
            self._notify(hand_off, "done")
        self._given_up.clear()
        for sequence in step.preempted:
            self.metrics.preemptions.add()
            self._by_sequence[sequence].times.preemptions += 1
        for sequence in step.fetching:
            live = self._by_sequence[sequence]
            live.times.scheduled = now
            live.fetch = self._keep(asyncio.get_running_loop().create_task(self._fetch(live)))
        for sequence in step.admitted:
            live = self._by_sequence[sequence]
            live.times.scheduled = live.times.scheduled or now
            if not live.prompt_counted:
                live.prompt_counted = True
                count_prompt(self.metrics, sequence, live.external_tokens, self.config.prefix_caching)

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
        sequence = live.sequence
        if sequence.generated == 0:
            self._begin_answer(live, now)
        else:
            self.metrics.itl.observe(now - live.times.last_token)
        live.times.last_token = now
        sequence.generated += 1
        self.metrics.generation_tokens.add()
        if sequence.generated < sequence.max_tokens:
            live.sink(Output(1, live.seed, None, sequence.cached_tokens, None))
            if live.aborted:
                self._drop(live)
            return
        reason = live.request.final_reason
        count_finished(self.metrics, live.request, sequence, live.times, reason, now)
        hand_off = self._end(live, now)
        live.sink(Output(1, live.seed, reason, sequence.cached_tokens, hand_off))

    def _begin_answer(self, live: _Live, now: float) -> None:
        sequence = live.sequence
        if not live.external_tokens:
            self._write_prompt(sequence, None)
        live.times.first_token = now
        live.seed = self._seed(live)
        self.metrics.ttft.observe(now - live.times.arrived)
        if live.hand_off is not None and live.external_tokens:
            sequence.cached_tokens = live.hand_off.cached_tokens

    def _write_prompt(self, sequence: Sequence, contents: list[int] | None) -> None:
        """`contents` None: what was computed, which is what the prompt hashes to."""
        size = self.pool.block_size
        first = sequence.cached_tokens // size
        full = sequence.prompt_tokens // size - first if self.config.prefix_caching else 0
        written = sequence.hashes if contents is None else contents
        self.pool.write(sequence.blocks[first:], sequence.hashes[first:], written[first:], full)

    def _seed(self, live: _Live) -> int:
        """That of the prompt if the blocks hold its KV, another one if they hold something else."""
        sequence = live.sequence
        held = [self.pool.content(block) for block in sequence.blocks[: len(sequence.hashes)]]
        if held == sequence.hashes:
            return tokens_seed(live.request.tokens)
        return crc32(repr(held).encode())

    def _end(self, live: _Live, now: float) -> dict[str, Any] | None:
        """Takes a finished request out; the blocks of a prefill stay under a lease."""
        sequence = live.sequence
        blocks = self._take_out(live)
        kv = live.request.kv
        if not (self.config.connector and kv and kv.get("do_remote_decode")):
            self.pool.release(blocks)
            return None
        request_id = live.request.request_id
        kept = blocks[: ceil(sequence.prompt_tokens / self.pool.block_size)]
        self.pool.release(blocks[len(kept) :])
        if self.faults.hand_off != "valid":
            self.pool.release(kept)
            return self._parameters(live, kept) if self.faults.hand_off == "spent" else None
        self.lease_table.grant(request_id, kept, now)
        self._watch_leases()
        return self._parameters(live, kept)

    def _parameters(self, live: _Live, blocks: list[int]) -> dict[str, Any]:
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.config.identity.engine_id,
            "remote_request_id": live.request.request_id,
            "remote_host": self.config.side_host,
            "remote_port": self.config.side_port,
            "tp_size": self.config.identity.tensor_parallel,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": live.sequence.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": self.config.identity.mode,
            "remote_prefill_cached_tokens": live.sequence.cached_tokens,
        }

    def _take_out(self, live: _Live) -> list[int]:
        self._live.pop(live.request.request_id, None)
        self._by_sequence.pop(live.sequence, None)
        return self.scheduler.remove(live.sequence)

    def _drop(self, live: _Live) -> None:
        self.pool.release(self._take_out(live))
        self._wake.set()

    # --- fetching KV

    def _read_hand_off(self, live: _Live) -> None:
        kv = live.request.kv
        if not (self.config.connector and kv and kv.get("do_remote_prefill")):
            return
        if self.faults.drop_kv:
            return
        if live.request.local_prompt:
            self.release(kv)
            return
        live.hand_off = HandOff.from_params(kv)
        live.sequence.remote = True
        self._watch_heartbeats()

    async def _fetch(self, live: _Live) -> None:
        assert live.hand_off is not None
        sequence = live.sequence
        missing = sequence.prompt_tokens - sequence.cached_tokens
        self.metrics.external_queries.add(missing)
        self.metrics.external_hits.add(missing)
        started = time.monotonic()
        try:
            if self.faults.fail_kv_load:
                raise TransferFailed("NIXL transfer failed: NIXL_ERR_BACKEND")
            received = await self._peers.fetch(live.hand_off, sequence.prompt_tokens)
        except EngineFatal as error:
            self.die(str(error))
        except TransferFailed as error:
            self._fail_load(live, str(error))
        else:
            await self._receive(live, received, missing, started)

    async def _receive(self, live: _Live, received: Received, tokens: int, started: float) -> None:
        assert live.hand_off is not None
        config, sequence = self.config, live.sequence
        kv_bytes = tokens * config.kv_bytes_per_token
        transfer_s = kv_bytes * 8 / (config.kv_gbps * 1e9) if config.kv_gbps else 0.0
        handshake_s = config.handshake_s if received.first_contact else 0.0
        await asyncio.sleep((transfer_s + handshake_s) / config.costs.speed)
        live.external_tokens = tokens
        self._write_prompt(sequence, self._as_local_contents(live, received))
        self._notify(live.hand_off, "done")
        self.metrics.xfer_time.observe(transfer_s / config.costs.speed)
        self.metrics.post_time.observe(max(0.0, time.monotonic() - started - transfer_s - handshake_s))
        self.metrics.xfer_bytes.observe(kv_bytes)
        self.metrics.descriptors.observe(len(received.contents))
        self.scheduler.arrived(sequence, sequence.prompt_tokens - 1)
        self._wake.set()

    def _as_local_contents(self, live: _Live, received: Received) -> list[int]:
        """What the local blocks now hold: the prompt's hashes if that is what was read, else what was read."""
        request, sequence = live.request, live.sequence
        expected = tuple(block_hashes(request.tokens, received.block_size, request.salt))
        if received.contents == expected:
            return sequence.hashes
        wrong = crc32(repr(received.contents).encode())
        return [(wrong + position) & 0xFFFFFFFF for position in range(len(sequence.hashes))]

    def _fail_load(self, live: _Live, why: str) -> None:
        self.metrics.failed_transfers.add()
        self.log.error(ENGINE, "base_worker.py:2210", why)
        sequence = live.sequence
        if self.config.recompute:
            self.scheduler.arrived(sequence, sequence.cached_tokens)
            self._wake.set()
            return
        self.log.error(ENGINE, "scheduler.py:2120", f"Failing request {sequence.request_id}: KV load failure")
        self.metrics.finished["error"].add()
        self._drop(live)
        live.sink(Output(0, 0, "error", 0, None))

    def _watch_heartbeats(self) -> None:
        if self._heartbeat_timer is None:
            self._heartbeat_timer = asyncio.get_running_loop().call_later(
                self.config.lease_s / 6, self._send_heartbeats
            )

    def _send_heartbeats(self) -> None:
        self._heartbeat_timer = None
        pending = [live.hand_off for live in self._live.values() if live.hand_off and not live.external_tokens]
        for hand_off in pending:
            self._notify(hand_off, "heartbeat")
        if pending:
            self._watch_heartbeats()

    def _notify(self, hand_off: HandOff, op: str) -> None:
        task = self._keep(self._peers.notify(hand_off, op))
        task.add_done_callback(self._count_notification)

    def _count_notification(self, task: asyncio.Task[bool]) -> None:
        if not task.cancelled() and not task.result() and self.config.connector:
            self.metrics.failed_notifications.add()

    # --- handing KV off

    def answer_peer(self, message: Message) -> Message | None:
        """What the side channel says to a decode server."""
        op, request_id = message.get("op"), str(message.get("request_id"))
        if op == "handshake":
            return {"error": "stale peer"} if self.faults.refuse_peers else self.config.identity.as_message()
        if op == "read":
            return self._read(message, request_id)
        if op == "heartbeat":
            self.lease_table.extend(request_id, time.monotonic())
            return None
        if op == "done":
            self._free_read(request_id)
            return None
        return {"error": f"unknown operation {op!r}"}

    def _read(self, message: Message, request_id: str) -> Message:
        if self.faults.refuse_peers:
            return {"error": "NIXL_ERR_NOT_FOUND: stale peer"}
        if message.get("engine_id") != self.config.identity.engine_id:
            return {"error": "NIXL_ERR_NOT_FOUND: the remote agent is gone"}
        contents = [self.pool.content(block) for block in message["blocks"]]
        if None in contents:
            return {"error": "NIXL_ERR_INVALID_PARAM: block id out of range"}
        return {"contents": contents}

    def _free_read(self, request_id: str) -> None:
        blocks = self.lease_table.end(request_id)
        if blocks is None:
            self.log.error(
                ENGINE,
                "pull_worker.py:664",
                f"Potentially invalid KV blocks for unrecognized request {request_id} were retrieved by a decode "
                "worker. They may have expired.",
            )
            return
        self.pool.release(blocks)
        self._wake.set()

    def _watch_leases(self) -> None:
        expiry = self.lease_table.next_expiry()
        if expiry is None or self._lease_timer is not None:
            return
        delay_s = max(0.0, expiry - time.monotonic()) + 0.001
        self._lease_timer = asyncio.get_running_loop().call_later(delay_s, self._expire_leases)

    def _expire_leases(self) -> None:
        self._lease_timer = None
        for lease in self.lease_table.expired(time.monotonic()):
            self.lease_table.end(lease.request_id)
            self.pool.release(lease.blocks)
            self.metrics.kv_expired.add()
            text = (
                f"Releasing expired KV blocks for request {lease.request_id} which were retrieved by 0 remote "
                "worker(s) before lease expired."
            )
            self.log.write(Line(ENGINE, "base_worker.py:3074", text, "WARNING"))
        self._wake.set()
        self._watch_leases()

    # --- tasks

    def _keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _later(self, deed: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(deed)
