"""The prefill side of a hand-off: keeps finished prompts under leases and answers the side channel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import ceil
from typing import Any

from .contracts import EngineConfig
from .faults import NONE
from .handoff import Message
from .kv import BlockPool, Leases
from .loglines import ENGINE, Line, Log
from .metrics import EngineMetrics
from .steps import Sequence


class Lender:
    """`blocks_freed` is called when a lease has ended, so that waiting requests get their turn."""

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        metrics: EngineMetrics,
        log: Log,
        blocks_freed: Callable[[], None],
    ) -> None:
        self.faults = NONE
        self._config = config
        self._pool = pool
        self._metrics = metrics
        self._log = log
        self._blocks_freed = blocks_freed
        self._leases = Leases(config.lease_s)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lease_count(self) -> int:
        return len(self._leases.by_request)

    def lend(self, sequence: Sequence, blocks: list[int]) -> dict[str, Any] | None:
        """Takes the blocks of a finished prefill; returns the parameters that its answer carries."""
        kept = blocks[: ceil(sequence.prompt_tokens / self._pool.block_size)]
        self._pool.release(blocks[len(kept) :])
        if self.faults.hand_off != "valid":
            self._pool.release(kept)
            return self._parameters(sequence, kept) if self.faults.hand_off == "spent" else None
        self._leases.grant(sequence.request_id, kept, time.monotonic())
        self._watch_expiry()
        return self._parameters(sequence, kept)

    def _parameters(self, sequence: Sequence, blocks: list[int]) -> dict[str, Any]:
        config = self._config
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": config.identity.engine_id,
            "remote_request_id": sequence.request_id,
            "remote_host": config.side_host,
            "remote_port": config.side_port,
            "tp_size": config.identity.tensor_parallel,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": sequence.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": config.identity.mode,
            "remote_prefill_cached_tokens": sequence.cached_tokens,
        }

    # --- the side channel

    def answer_peer(self, message: Message) -> Message | None:
        """What the side channel says to a decode server."""
        op, request_id = message.get("op"), str(message.get("request_id"))
        if op == "handshake":
            return {"error": "stale peer"} if self.faults.refuse_peers else self._config.identity.as_message()
        if op == "read":
            return self._read(message)
        if op == "heartbeat":
            self._leases.extend(request_id, time.monotonic())
            return None
        if op == "done":
            self._free_read(request_id)
            return None
        return {"error": f"unknown operation {op!r}"}

    def _read(self, message: Message) -> Message:
        """Whatever is in the blocks now, leased or not: as with memory that is read from outside, nobody checks."""
        if self.faults.refuse_peers:
            return {"error": "NIXL_ERR_NOT_FOUND: stale peer"}
        if message.get("engine_id") != self._config.identity.engine_id:
            return {"error": "NIXL_ERR_NOT_FOUND: the remote agent is gone"}
        contents = [self._pool.content(block) for block in message["blocks"]]
        if None in contents:
            return {"error": "NIXL_ERR_INVALID_PARAM: block id out of range"}
        return {"contents": contents}

    def _free_read(self, request_id: str) -> None:
        blocks = self._leases.end(request_id)
        if blocks is None:
            text = (
                f"Potentially invalid KV blocks for unrecognized request {request_id} were retrieved by a decode "
                "worker. They may have expired."
            )
            self._log.error(ENGINE, "pull_worker.py:663", text)
            return
        self._pool.release(blocks)
        self._blocks_freed()

    # --- expiry

    def _watch_expiry(self) -> None:
        expiry = self._leases.next_expiry()
        if expiry is None or self._timer is not None:
            return
        delay_s = max(0.0, expiry - time.monotonic()) + 0.001
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for lease in self._leases.expired(time.monotonic()):
            self._leases.end(lease.request_id)
            self._pool.release(lease.blocks)
            self._metrics.kv_expired.add()
            text = (
                f"Releasing expired KV blocks for request {lease.request_id} which were retrieved by 0 remote "
                "worker(s) before lease expired."
            )
            self._log.write(Line(ENGINE, "base_worker.py:3074", text, "WARNING"))
        self._blocks_freed()
        self._watch_expiry()
