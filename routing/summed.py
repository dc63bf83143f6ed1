"""The figures of several workers as those of one router."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)
Packed = list[Any]
"""A family: its name, words and type, and its samples as lists of name, labels and value."""


def pack(figures: Collector) -> bytes:
    families = [
        [family.name, family.documentation, family.type, [[one.name, one.labels, one.value] for one in family.samples]]
        for family in figures.collect()
    ]
    return orjson.dumps(families)


def render(mine: bytes, others: Sequence[bytes], workers: int) -> bytes:
    """The text that `/metrics` serves. `mine` and `others` are packed; fewer than `workers` may have answered."""
    known = [*_unpacked([mine]), *_unpacked(others)]
    if len(known) < workers:
        logger.warning(
            "%d of %d workers gave no figures in time: /metrics is without theirs", workers - len(known), workers
        )
    return generate_latest(Summed(known, workers))


def _unpacked(packed: Sequence[bytes]) -> Iterator[list[Packed]]:
    for one in packed:
        try:
            yield orjson.loads(one)
        except orjson.JSONDecodeError:
            continue  # Its worker died while it wrote.


class Summed(Collector):
    """Counts, histograms and loads add up; what is a state or a limit of a server is the highest of all."""

    def __init__(self, parts: Sequence[list[Packed]], workers: int) -> None:
        self._parts = parts
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for part in self._parts:
            for name, words, kind, samples in part:
                families.setdefault(name, Metric(name, words, kind))
                found = values.setdefault(name, {})
                for sample, labels, value in samples:
                    key = (sample, tuple(labels.items()))
                    both = max if is_highest(name, labels) else _plus
                    found[key] = both(found[key], value) if key in found else value
        for name, family in families.items():
            for (sample, labels), value in values[name].items():
                family.add_sample(sample, dict(labels), value)
            yield family
        yield _gauge("workers", "Worker processes of this router.", self._workers)
        yield _gauge("workers_answered", "Of these, those whose figures are in this answer.", len(self._parts))


def is_highest(family: str, labels: dict[str, str]) -> bool:
    return family.endswith(("_circuit_open", "_server_silent")) or labels.get("kind") == "limit"


def _plus(one: float, other: float) -> float:
    return one + other


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily("switchyard_router_" + name, words, value=value)
