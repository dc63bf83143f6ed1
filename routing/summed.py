"""The figures of several workers as those of one router."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)
GROWING = ("counter", "histogram")
Packed = list[Any]
"""A family: its name, words and type, and its samples as lists of name, labels and value."""


def pack(figures: Collector, before: bytes = b"") -> bytes:
    """`before`: what the workers that this one succeeds had counted (`counts_of`)."""
    families = _packed(figures)
    return orjson.dumps(families if not before else _packed(Summed([families, orjson.loads(before)])))


def _packed(figures: Collector) -> list[Packed]:
    return [
        [family.name, family.documentation, family.type, [[one.name, one.labels, one.value] for one in family.samples]]
        for family in figures.collect()
    ]


def counts_of(packed: bytes) -> bytes:
    """What only grows. The rest tells how things stand, and ends with its worker."""
    return orjson.dumps([family for family in orjson.loads(packed) if family[2] in GROWING])


def render(mine: bytes, others: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The text that `/metrics` serves. `mine` is packed, and of each of the others the answer, which may be missing or
    cut short, and what it had counted when it last told."""
    known, told = [orjson.loads(mine)], 1
    for answer, kept in others:
        found = _unpacked(answer)
        told += found is not None
        known.append(found if found is not None else _unpacked(kept) or [])
    workers = len(known)
    if told < workers:
        logger.warning(
            "%d of %d workers gave no figures in time: /metrics has what they counted before", workers - told, workers
        )
    return generate_latest(OfWorkers(known, told))


def _unpacked(packed: bytes) -> list[Packed] | None:
    try:
        found: list[Packed] = orjson.loads(packed)
    except orjson.JSONDecodeError:
        return None  # Its worker died while it wrote.
    return found


class Summed(Collector):
    """Counts, histograms and loads add up; what is a state or a limit of a server is the highest of all."""

    def __init__(self, parts: Sequence[list[Packed]]) -> None:
        self._parts = parts

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


class OfWorkers(Summed):
    """With how many workers there are."""

    def __init__(self, parts: Sequence[list[Packed]], told: int) -> None:
        super().__init__(parts)
        self._told = told

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        yield _gauge("workers", "Worker processes of this router.", len(self._parts))
        yield _gauge("workers_answered", "Of these, those that told their figures for this answer.", self._told)


def is_highest(family: str, labels: dict[str, str]) -> bool:
    return family.endswith(("_circuit_open", "_server_silent")) or labels.get("kind") == "limit"


def _plus(one: float, other: float) -> float:
    return one + other


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily("switchyard_router_" + name, words, value=value)
