"""What waits for Valkey: bounded by bytes, oldest lost first, and every loss counted."""

from collections import deque
from typing import Any, TypeAlias

Fields: TypeAlias = dict[Any, Any]
"""Of one stream entry."""

ENTRY_OVERHEAD_BYTES = 200


class Outbox:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[Fields, int]] = deque()
        self._bytes = 0
        self.dropped = 0
        """Entries lost because there was no room, since the start."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, fields: Fields, size_bytes: int) -> None:
        size_bytes += ENTRY_OVERHEAD_BYTES
        self._waiting.append((fields, size_bytes))
        self._bytes += size_bytes
        while self._bytes > self._limit_bytes:
            self._forget_oldest()
            self.dropped += 1

    def first(self, count: int) -> list[Fields]:
        """They stay here until `delivered` names them."""
        return [self._waiting[index][0] for index in range(min(count, len(self._waiting)))]

    def delivered(self, entries: list[Fields]) -> None:
        """Removes those that are still here: some may have been dropped while they were on their way."""
        for entry in entries:
            if self._waiting and self._waiting[0][0] is entry:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._bytes -= self._waiting.popleft()[1]
