"""The decode side of a hand-off: reads the KV of a prompt from a prefill server and keeps its lease alive."""

from __future__ import annotations

import asyncio
import time
from zlib import crc32

from .contracts import EngineConfig, EngineRequest
from .faults import NONE
from .handoff import HandOff, Peers, Received, TransferFailed
from .metrics import EngineMetrics
from .steps import Sequence
from .text import block_hashes


class Loader:
    def __init__(self, config: EngineConfig, metrics: EngineMetrics) -> None:
        self.faults = NONE
        self._config = config
        self._metrics = metrics
        self._peers = Peers(
            config.identity, config.handshake_timeout_s, config.enforce_hash, cleans_up=not config.recompute
        )
        # Not read yet: their leases are kept alive.
        self._pending: set[HandOff] = set()
        # Of clients that left before the transfer.
        self._given_up: list[HandOff] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[bool]] = set()

    def expect(self, hand_off: HandOff) -> None:
        """The request is here and waits: heartbeats begin."""
        self._pending.add(hand_off)
        self._watch()

    async def load(self, sequence: Sequence, request: EngineRequest, hand_off: HandOff) -> list[int]:
        """What the blocks of the prompt hold after the transfer. Raises TransferFailed or EngineFatal."""
        tokens = sequence.prompt_tokens - sequence.cached_tokens
        # vLLM counts these before the transfer, failed ones as well.
        self._metrics.external_queries.add(tokens)
        self._metrics.external_hits.add(tokens)
        started = time.monotonic()
        try:
            if self.faults.fail_kv_load:
                raise TransferFailed("NIXL transfer failed: NIXL_ERR_BACKEND")
            received = await self._peers.fetch(hand_off, sequence.prompt_tokens)
        except TransferFailed:
            self._metrics.failed_transfers.add()
            raise
        finally:
            self._pending.discard(hand_off)
        await self._transfer(tokens, received, started)
        self.tell_done(hand_off)
        return _contents(request, sequence, received)

    async def _transfer(self, tokens: int, received: Received, started: float) -> None:
        """Lasts as long as the bytes need."""
        config, metrics = self._config, self._metrics
        kv_bytes = tokens * config.kv_bytes_per_token
        bits_per_s = config.kv_gbps * 1e9
        transfer_s = kv_bytes * 8 / bits_per_s / config.costs.speed if bits_per_s else 0.0
        metrics.post_time.observe(time.monotonic() - started)
        handshake_s = config.handshake_s / config.costs.speed if received.first_contact else 0.0
        await asyncio.sleep(transfer_s + handshake_s)
        metrics.xfer_time.observe(transfer_s)
        metrics.xfer_bytes.observe(kv_bytes)
        metrics.descriptors.observe(len(received.contents))

    # --- telling the prefill server

    def tell_done(self, hand_off: HandOff) -> None:
        self._notify(hand_off, "done")

    def give_up(self, hand_off: HandOff) -> None:
        """The client left before the transfer: vLLM tells so at its next step, which an idle server never makes."""
        self._pending.discard(hand_off)
        self._given_up.append(hand_off)

    def tell_given_up(self) -> None:
        while self._given_up:
            self._notify(self._given_up.pop(), "done")

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._config.lease_s / 6, self._send_heartbeats)

    def _send_heartbeats(self) -> None:
        self._timer = None
        for hand_off in self._pending:
            self._notify(hand_off, "heartbeat")
        if self._pending:
            self._watch()

    def _notify(self, hand_off: HandOff, op: str) -> None:
        task = self._peers.notify(hand_off, op)
        self._tasks.add(task)
        task.add_done_callback(self._count_notification)

    def _count_notification(self, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and not task.result():
            self._metrics.failed_notifications.add()


def _contents(request: EngineRequest, sequence: Sequence, received: Received) -> list[int]:
    """The prompt's own hashes if its KV was read, else something that depends on what was read."""
    expected = tuple(block_hashes(request.tokens, received.block_size, request.salt))
    if received.contents == expected:
        return sequence.hashes
    wrong = crc32(repr(received.contents).encode())
    return [(wrong + position) & 0xFFFFFFFF for position in range(len(sequence.hashes))]
