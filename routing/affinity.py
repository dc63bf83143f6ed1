"""Sends what belongs together to the same server, where its prompt is cached: by session, or by the prompt's beginning.

Prompts are compared by their bytes, at 1 KiB, 2 KiB, 4 KiB and so on: the longest beginning seen before decides. That
is coarse, needs no tokenizer, and costs a hash over the prompt's bytes.
"""

from collections import OrderedDict
from typing import Final

FIRST_BLOCK_BYTES: Final = 1024
BLOCKS: Final = 14
"""Up to 8 MiB of prompt."""
REMEMBERED: Final = 65536


class Memory:
    """Which server last computed what. The oldest are forgotten."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._servers: OrderedDict[int | str, str] = OrderedDict()

    def get(self, key: int | str) -> str | None:
        return self._servers.get(key)

    def put(self, key: int | str, server_id: str) -> None:
        self._servers[key] = server_id
        self._servers.move_to_end(key)
        if len(self._servers) > self._size:
            self._servers.popitem(last=False)


def prefix_keys(prompt: bytes | memoryview, name: str | None = None) -> list[tuple[int, int]]:
    """(bytes covered, key) for each beginning of the prompt, shortest first. `name`: of an adapter, whose caches are
    others."""
    keys: list[tuple[int, int]] = []
    start, length, key = 0, FIRST_BLOCK_BYTES, 0 if name is None else hash(name)
    while length <= len(prompt) and len(keys) < BLOCKS:
        key = hash((key, bytes(prompt[start:length])))
        keys.append((length, key))
        start, length = length, length * 2
    return keys
