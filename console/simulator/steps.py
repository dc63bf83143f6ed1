"""The step model: which sequences get how many tokens in the next step, and how long it lasts. Pure.

Continuous batching as in vLLM's scheduler: running sequences first (one token each once their prompt is computed), then
waiting ones, until the step's token budget, the number of sequences or the KV blocks are used up. A prompt longer than
the budget is computed in chunks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from .kv import BlockPool


@dataclass(frozen=True)
class StepCosts:
    """Milliseconds. The defaults of `settings.Settings` resemble an 8-billion-parameter model on one GPU."""

    step_ms: float
    prompt_token_ms: float
    stream_ms: float
    context_token_ms: float
    speed: float = 1.0

    def length_s(self, prompt_tokens: int, streams: int, context_tokens: int) -> float:
        total_ms = (
            self.step_ms
            + self.prompt_token_ms * prompt_tokens
            + self.stream_ms * streams
            + self.context_token_ms * context_tokens
        )
        return total_ms / 1000 / self.speed


@dataclass(eq=False, slots=True)
class Sequence:
    """One choice of one request in the engine. `computed` counts tokens whose KV is in `blocks`."""

    request_id: str
    prompt_tokens: int
    hashes: list[int]
    max_tokens: int
    generated: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    skip_cache: bool = False
    # The KV comes from another server: the blocks are taken, the sequence waits until it has arrived.
    remote: bool = False
    arriving: bool = False

    @property
    def length(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def is_decoding(self) -> bool:
        return self.computed >= self.length - 1 and self.generated > 0


@dataclass(slots=True)
class Step:
    """What one step computes: `tokens` per sequence, in the order in which they were given out."""

    tokens: dict[Sequence, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    context_tokens: int = 0
    admitted: list[Sequence] = field(default_factory=list)
    fetching: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    def length_s(self, costs: StepCosts) -> float:
        return costs.length_s(self.prompt_tokens, len(self.tokens), self.context_tokens)


class Scheduler:
    def __init__(self, pool: BlockPool, token_budget: int, max_sequences: int) -> None:
        self.pool = pool
        self.token_budget = token_budget
        self.max_sequences = max_sequences
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.arriving: set[Sequence] = set()
        self.blocked_by_capacity = False

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def arrived(self, sequence: Sequence, computed: int) -> None:
        """The transfer has ended: the sequence goes on from `computed` tokens, ahead of those that wait."""
        self.arriving.discard(sequence)
        sequence.arriving = False
        sequence.remote = False
        sequence.computed = computed
        self.waiting.appendleft(sequence)

    def remove(self, sequence: Sequence) -> list[int]:
        """Takes a sequence out wherever it is; its blocks are the caller's to release."""
        if sequence in self.arriving:
            self.arriving.discard(sequence)
        elif sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        blocks, sequence.blocks = sequence.blocks, []
        return blocks

    def plan(self) -> Step:
        step = Step()
        budget = self._plan_running(step)
        self.blocked_by_capacity = False
        if not step.preempted:
            self._plan_waiting(step, budget)
        return step

    def _plan_running(self, step: Step) -> int:
        budget = self.token_budget
        for sequence in list(self.running):
            if budget == 0:
                break
            if sequence in step.preempted:
                continue
            if not self._grow(sequence, step):
                continue
            budget -= self._give(step, sequence, budget)
        return budget

    def _give(self, step: Step, sequence: Sequence, budget: int) -> int:
        count = min(sequence.length - sequence.computed, budget)
        step.tokens[sequence] = count
        step.context_tokens += sequence.computed
        if not sequence.is_decoding:
            step.prompt_tokens += count
        return count

    def _grow(self, sequence: Sequence, step: Step) -> bool:
        """Gives the sequence a block for its next token; takes one from the latest arrival when none is free."""
        if ceil(sequence.length / self.pool.block_size) <= len(sequence.blocks):
            return True
        while self.pool.free == 0:
            victim = self.running[-1]
            self._preempt(victim, step)
            if victim is sequence:
                return False
        sequence.blocks.extend(self.pool.take([], 1))
        return True

    def _preempt(self, victim: Sequence, step: Step) -> None:
        self.running.remove(victim)
        step.tokens.pop(victim, None)
        self.pool.release(victim.blocks)
        victim.blocks, victim.computed = [], 0
        self.waiting.appendleft(victim)
        step.preempted.append(victim)

    def _plan_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) + len(self.arriving) < self.max_sequences:
            sequence = self.waiting[0]
            if not sequence.blocks and not self._allocate(sequence):
                self.blocked_by_capacity = True
                return
            self.waiting.popleft()
            if sequence.remote:
                sequence.arriving = True
                self.arriving.add(sequence)
                step.fetching.append(sequence)
                continue
            self.running.append(sequence)
            step.admitted.append(sequence)
            budget -= self._give(step, sequence, budget)

    def _allocate(self, sequence: Sequence) -> bool:
        size = self.pool.block_size
        # The last token is always computed: its output is what the answer begins with.
        reusable = (sequence.prompt_tokens - 1) // size
        cached = [] if sequence.skip_cache else self.pool.cached_blocks(sequence.hashes[:reusable])
        total = ceil(sequence.length / size)
        if self.pool.needed(cached, total) > self.pool.free:
            return False
        sequence.blocks = self.pool.take(cached, total)
        sequence.cached_tokens = len(cached) * size
        sequence.computed = sequence.cached_tokens
        return True
