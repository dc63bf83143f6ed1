"""Token gaps of running streams, taken as they grow and summed up per server. Pure."""

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

from console.live.events import GapsEvent
from routing.record import Record

WORST_POINTS = 40
DEFAULT_GAP_LIMIT_MS = 200.0


@dataclass(slots=True)
class Harvest:
    """Gaps of one server since the last look; `ends` holds the Unix time at which each gap ended."""

    gaps_ms: "array[float]" = field(default_factory=lambda: array("f"))
    ends: list[float] = field(default_factory=list)

    def event(self, server: str, role: str, now: float, limit_ms: float) -> GapsEvent:
        """Needs at least one gap. Percentiles are nearest-rank over the gaps of this batch."""
        ordered = sorted(self.gaps_ms)
        count = len(ordered)
        above = ordered[bisect_right(ordered, limit_ms) :]
        return {
            "type": "gaps",
            "t": round(now, 3),
            "server": server,
            "role": role,
            "count": count,
            "p50_ms": _tenths(ordered[nearest_rank(count, 0.50)]),
            "p99_ms": _tenths(ordered[nearest_rank(count, 0.99)]),
            "max_ms": _tenths(ordered[-1]),
            "stalled_ms": _tenths(sum(above) - limit_ms * len(above)),
            "tokens": count,
            "points": self._worst(ordered[-WORST_POINTS:][0]),
        }

    def _worst(self, at_least_ms: float) -> list[tuple[float, float]]:
        worst = [
            (round(end, 3), _tenths(gap))
            for gap, end in zip(self.gaps_ms, self.ends, strict=True)
            if gap >= at_least_ms
        ]
        return worst[:WORST_POINTS]  # equal gaps may be more than asked for


@dataclass(slots=True)
class Watch:
    """How far one running request has been looked at."""

    record: Record
    taken: int = 0
    end: float = 0.0
    long_prompt_told: bool = False

    def take(self, into: Harvest) -> None:
        """Moves the gaps that came since the last look. They follow the first token, whose moment is known."""
        fresh = self.record.gaps_ms[self.taken :]
        if not fresh:
            return
        if not self.taken:
            self.end = self.record.received_at + (self.record.first_token_ms or 0.0) / 1000
        into.gaps_ms.extend(fresh)
        end = self.end
        for gap in fresh:
            end += gap / 1000
            into.ends.append(end)
        self.end = end
        self.taken += len(fresh)


def nearest_rank(count: int, share: float) -> int:
    """Index into `count` sorted values: the smallest that at least `share` of them do not exceed."""
    return max(0, -int(-count * share // 1) - 1)


def _tenths(value_ms: float) -> float:
    return round(value_ms, 1)
