"""The last minutes of one deployment's charts, bounded whatever the traffic. Pure: the caller brings the clock."""

from collections import deque
from typing import TypedDict

from console.live.bus import KEPT_S
from console.live.events import Event, FirstTokenEvent, GapsEvent, LongPromptEvent, RequestRow

DOTS_KEPT = 3000
PROMPTS_KEPT = 1000
REQUESTS_KEPT = 2000
SECONDS_KEPT = int(KEPT_S) * 40
"""Seconds of gaps over all servers: five minutes of forty."""
POINTS_PER_SECOND = 10


class Charts(TypedDict):
    """The part of a snapshot that no table holds."""

    ttft: list[FirstTokenEvent]
    gaps: list[GapsEvent]
    long_prompts: list[LongPromptEvent]
    requests: list[RequestRow]


class History:
    def __init__(self) -> None:
        self._ttft: deque[FirstTokenEvent] = deque(maxlen=DOTS_KEPT)
        self._long_prompts: deque[LongPromptEvent] = deque(maxlen=PROMPTS_KEPT)
        self._requests: deque[RequestRow] = deque(maxlen=REQUESTS_KEPT)
        self._gaps: dict[tuple[int, str], GapsEvent] = {}
        """By second and server, oldest first."""

    def add(self, event: Event) -> None:
        """Cards, moves and loads are not kept: a snapshot reads them fresh."""
        if event["type"] == "ttft":
            self._ttft.append(event)
        elif event["type"] == "gaps":
            self._add_gaps(event)
        elif event["type"] == "long_prompt":
            self._long_prompts.append(event)
        elif event["type"] == "request":
            self._requests.append(event["request"])

    def _add_gaps(self, event: GapsEvent) -> None:
        key = (int(event["t"]), event["server"])
        known = self._gaps.get(key)
        self._gaps[key] = thinned(event) if known is None else merged(known, event)
        while len(self._gaps) > SECONDS_KEPT:
            del self._gaps[next(iter(self._gaps))]

    def charts(self, now: float) -> Charts:
        oldest = now - KEPT_S
        return {
            "ttft": [event for event in self._ttft if event["t"] >= oldest],
            "gaps": [event for event in self._gaps.values() if event["t"] >= oldest],
            "long_prompts": [event for event in self._long_prompts if event["t"] >= oldest],
            "requests": [row for row in self._requests if _ended_at(row) >= oldest],
        }

    def forget_before(self, oldest: float) -> None:
        """Keeps memory with the traffic; `charts` leaves old entries out in any case."""
        for kept in (self._ttft, self._long_prompts):
            while kept and kept[0]["t"] < oldest:
                kept.popleft()
        while self._requests and _ended_at(self._requests[0]) < oldest:
            self._requests.popleft()
        for key in [key for key in self._gaps if key[0] < oldest - 1]:
            del self._gaps[key]


def _ended_at(row: RequestRow) -> float:
    return row["t"] + (row["e2e_ms"] or 0.0) / 1000


def thinned(event: GapsEvent) -> GapsEvent:
    return {**event, "points": _worst(event["points"])}


def merged(one: GapsEvent, other: GapsEvent) -> GapsEvent:
    """Two batches of one server in one. Exact but for the percentiles: the medians are averaged by count, and of the
    99th percentiles the larger stands, so that a merged second never looks calmer than it was."""
    count = one["count"] + other["count"]
    return {
        "type": "gaps",
        "t": max(one["t"], other["t"]),
        "server": one["server"],
        "role": other["role"],
        "count": count,
        "p50_ms": round((one["p50_ms"] * one["count"] + other["p50_ms"] * other["count"]) / count, 1),
        "p99_ms": max(one["p99_ms"], other["p99_ms"]),
        "max_ms": max(one["max_ms"], other["max_ms"]),
        "stalled_ms": round(one["stalled_ms"] + other["stalled_ms"], 1),
        "tokens": one["tokens"] + other["tokens"],
        "points": _worst([*one["points"], *other["points"]]),
    }


def _worst(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= POINTS_PER_SECOND:
        return points
    return sorted(sorted(points, key=lambda point: point[1])[-POINTS_PER_SECOND:])
