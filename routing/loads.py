"""What each server is doing for us right now, and what it last said about itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

FRESH_S: Final = 5.0
"""Engine samples older than this are unknown, which is not the same as zero."""


FIELDS: Final = 4
"""Of a load; their places in a row:"""
INFLIGHT: Final = 0
STREAMS: Final = 1
PROMPT_TOKENS: Final = 2
HANDOFFS: Final = 3


class Row:
    """The counts of one server in memory that several routers share: each writes its own, all read the sum.

    A count is one aligned 64-bit word that one process writes, so it is never seen half written. Nothing is locked: two
    routers that choose in the same microsecond may both take what looked free.
    """

    __slots__ = ("_cells", "_others", "_own")

    def __init__(self, cells: "memoryview[int]", own: int, others: Sequence[int]) -> None:
        """`own` and `others` say where in `cells` this router's counts begin, and those of the others."""
        self._cells = cells
        self._own = own
        self._others = tuple(others)

    def show(self, load: "Load") -> None:
        cells, at = self._cells, self._own
        cells[at + INFLIGHT] = load.inflight
        cells[at + STREAMS] = load.streams
        cells[at + PROMPT_TOKENS] = load.prompt_tokens
        cells[at + HANDOFFS] = load.handoffs

    def of_others(self, count: int) -> int:
        total = 0
        for at in self._others:
            total += self._cells[at + count]
        return total


@dataclass(slots=True)
class Load:
    """Counts of one server by this router; `all_…` with what other routers that share a `Row` have there."""

    inflight: int = 0
    """Requests sent and not yet answered in full; on a decode server also those whose prompt is being computed."""
    streams: int = 0
    """Of these, answers that clients are reading (decode and plain servers)."""
    prompt_tokens: int = 0
    """Estimated prompt tokens being computed (prefill servers)."""
    handoffs: int = 0
    """Prompts computed here that no decode server has fetched yet."""
    row: Row | None = field(default=None, repr=False, compare=False)
    """None: this router is the only one."""

    @property
    def all_inflight(self) -> int:
        return self.inflight if self.row is None else self.inflight + self.row.of_others(INFLIGHT)

    @property
    def all_streams(self) -> int:
        return self.streams if self.row is None else self.streams + self.row.of_others(STREAMS)

    @property
    def all_prompt_tokens(self) -> int:
        return self.prompt_tokens if self.row is None else self.prompt_tokens + self.row.of_others(PROMPT_TOKENS)

    @property
    def all_handoffs(self) -> int:
        return self.handoffs if self.row is None else self.handoffs + self.row.of_others(HANDOFFS)

    def changed(self) -> None:
        if self.row is not None:
            self.row.show(self)


@dataclass(frozen=True, slots=True)
class Sample:
    """An engine's own figures. None is unknown."""

    at: float
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    waiting: int | None = None
    running: int | None = None


class Taken:
    """Something counted on a server for a while. Given back once, however often `give_back` is called."""

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo

    @property
    def is_given_back(self) -> bool:
        return self._undo is None

    def give_back(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def take(load: Load, *, prompt_tokens: int = 0, streams: int = 0) -> Taken:
    """Counts one request."""
    load.inflight += 1
    load.prompt_tokens += prompt_tokens
    load.streams += streams
    load.changed()

    def undo() -> None:
        load.inflight -= 1
        load.prompt_tokens -= prompt_tokens
        load.streams -= streams
        load.changed()

    return Taken(undo)


def take_handoff(load: Load) -> Taken:
    load.handoffs += 1
    load.changed()

    def undo() -> None:
        load.handoffs -= 1
        load.changed()

    return Taken(undo)
