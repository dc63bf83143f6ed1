"""Recognises the usual token of a stream without parsing it, in the HTTP chunk that carries it.

The events of a stream differ only in the text of their one delta: same id, same model, same everything. Once one has
been parsed (`routing.sse`), what has the same bytes before and after a text without a quote is such an event again.
For a frame of a given length the bytes before the text, its size line included, are known beforehand, so a token is
recognised by one look-up and three comparisons.
"""

from typing import Final

NEVER: Final = b"\0"
REMEMBERED_LENGTHS: Final = 512


class FrameTemplate:
    """Of one stream. `prefix` and `suffix` are the event's bytes before and after its text."""

    __slots__ = ("_heads", "_prefix", "_tail")

    def __init__(self, prefix: bytes, suffix: bytes) -> None:
        self._prefix = prefix
        self._tail = suffix + b"\r\n"
        self._heads: dict[int, bytes] = {}

    def is_token(self, data: bytes) -> bool:
        """Whether `data` is exactly one frame with one token."""
        length = len(data)
        head = self._heads.get(length)
        if head is None:
            head = self._head_of(length)
        tail = self._tail
        return data.startswith(head) and data.endswith(tail) and data.find(b'"', len(head)) == length - len(tail)

    def _head_of(self, length: int) -> bytes:
        head = NEVER
        for digits in range(1, 9):
            size = length - digits - 4
            if size > len(self._prefix) + len(self._tail) - 2 and len(b"%x" % size) == digits:
                head = b"%x\r\n%b" % (size, self._prefix)
        if len(self._heads) >= REMEMBERED_LENGTHS:
            self._heads.clear()
        self._heads[length] = head
        return head

    def run(self, data: bytes, at: int) -> tuple[int, int]:
        """How many frames from `at` on are tokens, and where the last of them ends."""
        count, prefix, tail = 0, self._prefix, self._tail
        while (line := data.find(b"\r\n", at, at + 10)) > at:
            try:
                end = line + 4 + int(data[at:line], 16)
            except ValueError:
                break
            text, after = line + 2 + len(prefix), end - len(tail)
            if end > len(data) or after <= text or not data.startswith(prefix, line + 2):
                break
            if not data.endswith(tail, text, end) or data.find(b'"', text, end) != after:
                break
            count, at = count + 1, end
        return count, at
