"""The KV cache of one engine: blocks, the prefix cache over them, and the leases of a hand-off. Pure: time is given.

A block's content is the hash of the prompt up to its end. Freed blocks keep their content until they are needed again,
oldest first, as vLLM's do: that is why a late hand-off is right by luck or wrong without an error.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


class BlockPool:
    """Blocks 1 to `count`; number 0 is vLLM's null block and never handed out."""

    def __init__(self, count: int, block_size: int) -> None:
        self.count = count
        self.block_size = block_size
        self._next_fresh = 1
        self._freed: OrderedDict[int, None] = OrderedDict()
        self._owners: dict[int, int] = {}
        self._content: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._cached_as: dict[int, int] = {}

    @property
    def free(self) -> int:
        return self.count - self._next_fresh + 1 + len(self._freed)

    @property
    def usage(self) -> float:
        return 1.0 - self.free / self.count

    def content(self, block: int) -> int | None:
        """The hash in `block`, 0 when it was never written, None when there is no such block."""
        if not 0 <= block <= self.count:
            return None
        return self._content.get(block, 0)

    def cached_blocks(self, hashes: list[int]) -> list[int]:
        """The blocks that already hold the beginning of a prompt."""
        found = []
        for value in hashes:
            block = self._cached.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def needed(self, cached: list[int], total: int) -> int:
        """Blocks that `take` would draw from the free ones: cached ones that nobody holds count as well."""
        return total - len(cached) + sum(1 for block in cached if block not in self._owners)

    def take(self, cached: list[int], total: int) -> list[int]:
        """`total` blocks beginning with `cached`. The caller has checked `needed` against `free`."""
        for block in cached:
            self._hold(block)
        return cached + [self._draw() for _ in range(total - len(cached))]

    def write(self, blocks: list[int], hashes: list[int], contents: list[int], full: int) -> None:
        """Puts a prompt into blocks. `hashes` say what the blocks should hold, `contents` what they do hold after a
        transfer of something else. The first `full` of them become prefix cache, right or wrong, as in vLLM."""
        for position, (block, value, content) in enumerate(zip(blocks, hashes, contents, strict=False)):
            self._content[block] = content
            if position < full and value not in self._cached:
                self._cached[value] = block
                self._cached_as[block] = value

    def release(self, blocks: list[int]) -> None:
        """Gives blocks back, the last first, so that the beginning of a prompt stays cached longest."""
        for block in reversed(blocks):
            self._owners[block] -= 1
            if self._owners[block] == 0:
                del self._owners[block]
                self._freed[block] = None

    def forget_cache(self) -> None:
        self._cached.clear()
        self._cached_as.clear()

    def _hold(self, block: int) -> None:
        self._owners[block] = self._owners.get(block, 0) + 1
        self._freed.pop(block, None)

    def _draw(self) -> int:
        if self._next_fresh <= self.count:
            block = self._next_fresh
            self._next_fresh += 1
        else:
            block, _ = self._freed.popitem(last=False)
            self._evict(block)
        self._owners[block] = 1
        return block

    def _evict(self, block: int) -> None:
        # What comes into the block now is unknown until it is written: not what was there.
        self._content[block] = ~self._content.get(block, 0) & 0xFFFFFFFF
        value = self._cached_as.pop(block, None)
        if value is not None:
            del self._cached[value]


@dataclass(slots=True)
class Lease:
    """Blocks that a prefill server keeps for a decode server until `expires` (monotonic seconds)."""

    request_id: str
    blocks: list[int]
    expires: float


@dataclass
class Leases:
    """vLLM: a heartbeat extends a lease to now plus two thirds of the prefill server's own duration."""

    duration_s: float
    by_request: dict[str, Lease] = field(default_factory=dict)

    def grant(self, request_id: str, blocks: list[int], now: float) -> None:
        self.by_request[request_id] = Lease(request_id, blocks, now + self.duration_s)

    def extend(self, request_id: str, now: float) -> None:
        lease = self.by_request.get(request_id)
        if lease is not None:
            lease.expires = max(lease.expires, now + self.duration_s * 2 / 3)

    def end(self, request_id: str) -> list[int] | None:
        """The blocks to release, None when there is no such lease (any more)."""
        lease = self.by_request.pop(request_id, None)
        return None if lease is None else lease.blocks

    def expired(self, now: float) -> list[Lease]:
        return [lease for lease in self.by_request.values() if lease.expires <= now]

    def next_expiry(self) -> float | None:
        return min((lease.expires for lease in self.by_request.values()), default=None)
