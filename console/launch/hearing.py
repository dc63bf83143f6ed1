"""Whether we hear well enough to call a host silent. Pure, the clock is an argument.

When the broker, this worker or our network was away, every host looks silent at first. So a host is called silent only
after we have heard others, without a break, for as long as a host may be silent.
"""

from dataclasses import dataclass


@dataclass
class Hearing:
    """Kept in the memory of one worker: a worker that starts listens first, then judges."""

    limit_s: float
    """How long a host may be silent."""
    break_s: float = 5.0
    """Ticks further apart than this mean that we were away ourselves."""
    _since: float | None = None
    _last_tick: float | None = None

    def note(self, now: float, hear_somebody: bool) -> None:
        """Call at every tick."""
        was_away = self._last_tick is None or not 0 <= now - self._last_tick <= self.break_s
        self._last_tick = now
        if not hear_somebody:
            self._since = None
        elif self._since is None or was_away:
            self._since = now

    def is_sure(self, now: float) -> bool:
        return self._since is not None and now - self._since >= self.limit_s
