"""TTFT and token gaps of a window of requests.

Percentiles by DDSketch (Masson, Rim and Lee, VLDB 2019) with 1 % relative error; largest values and sums are exact.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import TypedDict

from ddsketch import DDSketch

from console.fleet.models import Deployment
from console.traffic.models import RequestRecord

RELATIVE_ERROR = 0.01
DEFAULT_GAP_LIMIT_MS = 200.0
READ_BATCH = 500


class Window(TypedDict):
    """Milliseconds; None where there is nothing to measure. Fits a JSON column."""

    start: float
    end: float
    """Unix seconds; requests received from `start` on and before `end`."""
    requests: int
    outcomes: dict[str, int]
    ttft_count: int
    """Streamed requests that got a first token. The others have no TTFT and are left out of its percentiles."""
    without_ttft: int
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    ttft_p99_ms: float | None
    gap_count: int
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    gap_max_ms: float | None
    stalled_ms: float
    """Sum over the gaps above `gap_limit_ms` of what exceeds it."""
    gap_limit_ms: float
    prompt_tokens: int
    completion_tokens: int


class Sketch:
    """Percentiles of values that come in batches; sketches of several processes can be merged."""

    def __init__(self) -> None:
        self._sketch = DDSketch(RELATIVE_ERROR)
        self.largest: float | None = None
        """Exact; None while empty."""

    def add(self, values: Iterable[float]) -> None:
        """Equal values cost one step together; gaps are rounded to 0.1 ms, so there are many."""
        for value, times in Counter(values).items():
            self._sketch.add(value, times)
            self.largest = value if self.largest is None else max(value, self.largest)

    def merge(self, other: "Sketch") -> None:
        self._sketch.merge(other._sketch)
        self.largest = max((each for each in (self.largest, other.largest) if each is not None), default=None)

    @property
    def count(self) -> int:
        return int(self._sketch.count)

    def at(self, share: float) -> float | None:
        """None while empty. Never above the largest value, whatever the sketch's error."""
        if self.largest is None:
            return None
        return round(min(float(self._sketch.get_quantile_value(share) or 0.0), self.largest), 2)


def window(deployment_id: int, start: datetime, end: datetime) -> Window:
    """Reads every record of the window: minutes to hours, not months."""
    rows = RequestRecord.objects.filter(deployment_id=deployment_id, received_at__gte=start, received_at__lt=end)
    return measure(rows.order_by().iterator(READ_BATCH), start, end, _gap_limit_ms(deployment_id))


def _gap_limit_ms(deployment_id: int) -> float:
    limit_ms = Deployment.objects.filter(pk=deployment_id).values_list("gap_limit_ms", flat=True).first()
    return DEFAULT_GAP_LIMIT_MS if limit_ms is None else limit_ms


def measure(records: Iterable[RequestRecord], start: datetime, end: datetime, gap_limit_ms: float) -> Window:
    ttft, gaps, outcomes = Sketch(), Sketch(), Counter[str]()
    sums: Counter[str] = Counter()
    stalled_ms = 0.0
    for record in records:
        outcomes[record.outcome] += 1
        sums["prompt"] += record.prompt_tokens or 0
        sums["completion"] += record.completion_tokens or 0
        if record.streamed and record.first_token_ms is not None:
            ttft.add([record.first_token_ms])
        gaps.add(record.gaps_ms)
        stalled_ms += stalled(record.gaps_ms, gap_limit_ms)
    return {
        "start": start.timestamp(),
        "end": end.timestamp(),
        "requests": outcomes.total(),
        "outcomes": dict(outcomes),
        "ttft_count": ttft.count,
        "without_ttft": outcomes.total() - ttft.count,
        "ttft_p50_ms": ttft.at(0.50),
        "ttft_p90_ms": ttft.at(0.90),
        "ttft_p99_ms": ttft.at(0.99),
        "gap_count": gaps.count,
        "gap_p50_ms": gaps.at(0.50),
        "gap_p99_ms": gaps.at(0.99),
        "gap_max_ms": gaps.largest,
        "stalled_ms": round(stalled_ms, 1),
        "gap_limit_ms": gap_limit_ms,
        "prompt_tokens": sums["prompt"],
        "completion_tokens": sums["completion"],
    }


def stalled(gaps_ms: Iterable[float], limit_ms: float) -> float:
    """The time that streams stood still beyond what the limit allows."""
    return sum(gap - limit_ms for gap in gaps_ms if gap > limit_ms)
