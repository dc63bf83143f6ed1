"""What the workers of one router have in common: memory that is made before they are forked, and needs no messages.

Whatever one worker writes the others read at once. A word of 64 bits is written whole, so nothing is locked.
"""

import mmap
import time
from collections.abc import Sequence
from typing import Final

from routing.affinity import REMEMBERED, Memory
from routing.loads import FIELDS, Load, Row

WORD_BYTES: Final = 8
WAYS: Final = 8
"""Places that a key may be in."""
BUCKETS: Final = 2 * REMEMBERED // WAYS
SERVER_BITS: Final = 16
STAMP_BITS: Final = 16
TAG_BITS: Final = 30
"""Of a word: the server's number, from 1; when it was written, in seconds; what the key's bucket leaves of its hash."""
SERVER_MASK: Final = (1 << SERVER_BITS) - 1
STAMP_MASK: Final = (1 << STAMP_BITS) - 1
TAG_MASK: Final = (1 << TAG_BITS) - 1


def shared_words(count: int) -> "memoryview[int]":
    """Zeroes that this process and those forked from it share. A page takes memory when it is first written to."""
    return memoryview(mmap.mmap(-1, count * WORD_BYTES)).cast("q")


class SharedMemory(Memory):
    """A `Memory` that all workers write to and read. It holds the keys' hashes, which are the same in forked processes.

    A key may be in any of its bucket's places; of a full bucket the oldest is forgotten. Two workers that write to the
    same full bucket in the same microsecond may lose one of the two. Another key is found in place of one that is not
    there once in a hundred million times: then a prompt is not where it is cached.
    """

    def __init__(self, words: "memoryview[int]", server_ids: Sequence[str], first_way: int = 0) -> None:
        """`first_way`: where a free place is looked for first; workers differ in it and so do not meet."""
        super().__init__(0)
        self._words = words
        self._server_ids = tuple(server_ids)
        self._numbers = {server_id: number for number, server_id in enumerate(server_ids, 1)}
        self._first_way = first_way

    def get(self, key: int | str) -> str | None:
        hashed = hash(key)
        at, tag = hashed % BUCKETS * WAYS, hashed // BUCKETS & TAG_MASK
        bucket: list[int] = self._words[at : at + WAYS].tolist()
        for word in bucket:
            if word >> (STAMP_BITS + SERVER_BITS) == tag and word:
                return self._server_ids[(word & SERVER_MASK) - 1]
        return None

    def put(self, key: int | str, server_id: str) -> None:
        hashed, now = hash(key), int(time.monotonic())
        at, tag = hashed % BUCKETS * WAYS, hashed // BUCKETS & TAG_MASK
        way = self._way(self._words[at : at + WAYS].tolist(), tag, now)
        stamp = now & STAMP_MASK
        self._words[at + way] = ((tag << STAMP_BITS | stamp) << SERVER_BITS) | self._numbers[server_id]

    def _way(self, bucket: list[int], tag: int, now: int) -> int:
        """Where the key is; else a free place; else the oldest."""
        free, oldest, age = -1, 0, -1
        for step in range(WAYS):
            way = (self._first_way + step) % WAYS
            word = bucket[way]
            if word == 0:
                free = way if free < 0 else free
            elif word >> (STAMP_BITS + SERVER_BITS) == tag:
                return way
            elif (now - (word >> SERVER_BITS)) & STAMP_MASK > age:
                oldest, age = way, (now - (word >> SERVER_BITS)) & STAMP_MASK
        return free if free >= 0 else oldest


class Seat:
    """One worker's place in the shared memory."""

    def __init__(self, loads: dict[str, Load], responses: Memory, sessions: Memory, prefixes: Memory) -> None:
        self.loads = loads
        """By server id."""
        self.responses = responses
        self.sessions = sessions
        self.prefixes = prefixes


class Shared:
    """For workers of a router whose servers never change. Make it before they are forked."""

    def __init__(self, server_ids: Sequence[str], workers: int) -> None:
        self.workers = workers
        self._server_ids = tuple(server_ids)
        self._row_words = FIELDS * len(self._server_ids)
        self._loads = shared_words(workers * self._row_words)
        self._memories = [shared_words(BUCKETS * WAYS) for _ in range(3)]

    def seat(self, worker: int) -> Seat:
        """Of worker `worker`, counted from 0. To be taken by one process at a time."""
        first_way = worker * WAYS // self.workers
        responses, sessions, prefixes = (SharedMemory(words, self._server_ids, first_way) for words in self._memories)
        loads = {server_id: Load(row=self._row(worker, at)) for at, server_id in enumerate(self._server_ids)}
        return Seat(loads, responses, sessions, prefixes)

    def _row(self, worker: int, server: int) -> Row:
        at = [one * self._row_words + server * FIELDS for one in range(self.workers)]
        return Row(self._loads, at[worker], at[:worker] + at[worker + 1 :])

    def clear(self, worker: int) -> None:
        """What a worker that is gone had under way is gone with it."""
        for at in range(worker * self._row_words, (worker + 1) * self._row_words):
            self._loads[at] = 0
