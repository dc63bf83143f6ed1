"""What each server is doing for us right now, and what it last said about itself."""

from collections.abc import Callable
from dataclasses import dataclass

FRESH_S = 5.0
"""Engine samples older than this are unknown, which is not the same as zero."""


@dataclass(slots=True)
class Load:
    """Counts of one server, all by this router."""

    inflight: int = 0
    """Requests sent and not yet answered in full; on a decode server also those whose prompt is being computed."""
    streams: int = 0
    """Of these, answers that clients are reading (decode and plain servers)."""
    prompt_tokens: int = 0
    """Estimated prompt tokens being computed (prefill servers)."""
    handoffs: int = 0
    """Prompts computed here that no decode server has fetched yet."""


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

    def undo() -> None:
        load.inflight -= 1
        load.prompt_tokens -= prompt_tokens
        load.streams -= streams

    return Taken(undo)


def take_handoff(load: Load) -> Taken:
    load.handoffs += 1

    def undo() -> None:
        load.handoffs -= 1

    return Taken(undo)
