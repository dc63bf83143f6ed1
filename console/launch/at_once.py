"""How much of one kind of work a process does at once, and nothing of it twice at the same time."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class AtOnce:
    """In memory on purpose: what a process was doing when it was killed is free to be done again at once.

    Work that finds no room is not queued; whoever wanted it asks again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._doing: set[Hashable] = set()
        self._lock = threading.Lock()

    @contextmanager
    def taking(self, work: Hashable) -> Iterator[bool]:
        """False: it is being done already, or there is no room."""
        with self._lock:
            taken = work not in self._doing and len(self._doing) < self._limit
            if taken:
                self._doing.add(work)
        try:
            yield taken
        finally:
            if taken:
                with self._lock:
                    self._doing.discard(work)
