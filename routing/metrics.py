"""The router's own figures in Prometheus form, named as vLLM names its own, under `switchyard_router_`.

Kept as plain counts and turned into samples when somebody asks, so that a token costs nothing here and a finished
request little.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from routing.errors import Answered, LegError, TimedOut
from routing.record import Record

if TYPE_CHECKING:
    from routing.app import Router
    from routing.choose import Choice

TTFT_S = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.25,
    0.5,
    0.75,
    1,
    1.5,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
GAP_S = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40)
LATENCY_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
CHOICE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
Labels = tuple[str, ...]


class Histogram:
    """Counts per bucket; the last is above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Many at once: sorted, then one search per bound rather than one per value."""
        ordered = sorted(values)
        self.total += sum(ordered)
        below = 0
        for at, bound in enumerate(self.bounds):
            upto = bisect_right(ordered, bound)
            self.counts[at] += upto - below
            below = upto
        self.counts[-1] += len(ordered) - below

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: cumulative, up to +Inf."""
        result, running = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            result.append((bound, float(running)))
        return result


class Histograms:
    """One histogram per set of labels."""

    def __init__(self, name: str, words: str, labels: Labels, bounds: Sequence[float]) -> None:
        self._name, self._words, self._labels, self._bounds = name, words, labels, bounds
        self._by_labels: dict[Labels, Histogram] = {}

    def at(self, *labels: str) -> Histogram:
        found = self._by_labels.get(labels)
        if found is None:
            found = self._by_labels[labels] = Histogram(self._bounds)
        return found

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._words, labels=self._labels)
        for labels, histogram in self._by_labels.items():
            family.add_metric(list(labels), buckets=histogram.buckets(), sum_value=histogram.total)
        return family


class RouterMetrics:
    """Everything counted; register it once per process. `render` gives the text that `/metrics` serves."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._router: Router | None = None
        by_route = ("deployment", "route")
        prefix = "switchyard_router_"
        self._ttft = Histograms(
            prefix + "time_to_first_token_seconds",
            "Request read to first content, reasoning or tool delta; streamed requests only.",
            by_route,
            TTFT_S,
        )
        self._gaps = Histograms(
            prefix + "inter_token_latency_seconds",
            "Gap between consecutive chunks that carry tokens.",
            by_route,
            GAP_S,
        )
        self._e2e = Histograms(prefix + "e2e_request_latency_seconds", "Request read to its end.", by_route, LATENCY_S)
        self._choice = Histograms(
            prefix + "choice_seconds", "Request read to servers chosen, waiting included.", by_route, CHOICE_S
        )
        self._prefill = Histograms(
            prefix + "prefill_seconds", "Prefill leg sent to its answer.", ("deployment",), LATENCY_S
        )
        self._handoff = Histograms(
            prefix + "handoff_gap_seconds",
            "Prefill answered to first token from the decode server: transfer, decode queue and first step.",
            ("deployment",),
            TTFT_S,
        )
        self._requests: defaultdict[Labels, int] = defaultdict(int)
        self._tokens: defaultdict[Labels, int] = defaultdict(int)
        self._retries: defaultdict[Labels, int] = defaultdict(int)
        self._failures: defaultdict[Labels, int] = defaultdict(int)
        self._orphans: defaultdict[Labels, int] = defaultdict(int)
        self.registry.register(cast(Collector, self))

    def watch(self, router: "Router") -> None:
        """Whose loads and circuits are shown."""
        self._router = router

    def render(self) -> bytes:
        return generate_latest(self.registry)

    # Counting

    def finished(self, record: Record) -> None:
        deployment, route = record.deployment, record.route or "none"
        self._requests[deployment, route, record.outcome] += 1
        self._retries[deployment,] += record.attempts - 1
        self._tokens[deployment, "prompt"] += record.prompt_tokens or 0
        self._tokens[deployment, "generation"] += record.completion_tokens or 0
        if record.outcome == "ok" and record.finished_ms is not None:
            self._e2e.at(deployment, route).observe(record.finished_ms / 1e3)
        if record.chosen_ms is not None:
            self._choice.at(deployment, route).observe(record.chosen_ms / 1e3)
        self._count_streamed(record, deployment, route)

    def _count_streamed(self, record: Record, deployment: str, route: str) -> None:
        answered = record.prefill_answered_ms
        if answered is not None and record.prefill_sent_ms is not None:
            self._prefill.at(deployment).observe((answered - record.prefill_sent_ms) / 1e3)
        if record.first_token_ms is None:
            return
        self._ttft.at(deployment, route).observe(record.first_token_ms / 1e3)
        if answered is not None:
            self._handoff.at(deployment).observe((record.first_token_ms - answered) / 1e3)
        if record.gaps_ms:
            self._gaps.at(deployment, route).observe_all([gap / 1e3 for gap in record.gaps_ms])

    def orphaned(self, deployment: str) -> None:
        self._orphans[deployment, "orphaned"] += 1

    def released(self, deployment: str) -> None:
        self._orphans[deployment, "released"] += 1

    def leg_failed(self, choice: "Choice", error: LegError, *, on_prefill: bool) -> None:
        server = choice.prefill if on_prefill and choice.prefill is not None else choice.decode
        self._failures[server.name, server.server.role, _kind(error)] += 1

    # Showing

    def collect(self) -> Iterator[Metric]:
        for histograms in (self._ttft, self._gaps, self._e2e, self._choice, self._prefill, self._handoff):
            yield histograms.family()
        yield _counter("requests", "Requests by route and outcome.", ("deployment", "route", "outcome"), self._requests)
        yield _counter("tokens", "Tokens by the engines' own usage.", ("deployment", "kind"), self._tokens)
        yield _counter("retries", "Attempts after the first.", ("deployment",), self._retries)
        yield _counter("leg_failures", "Legs that failed, by server.", ("server", "role", "reason"), self._failures)
        words = (
            "Caches kept for a request that did not fetch them: released at once, or orphaned until their lease ends."
        )
        yield _counter("unused_handoffs", words, ("deployment", "end"), self._orphans)
        yield from self._collect_servers()

    def _collect_servers(self) -> Iterator[Metric]:
        router = self._router
        if router is None:
            return
        loads, circuits, connections = router.loads(), router.circuits(), router.connections()
        names = router.server_names()
        for field in ("inflight", "streams", "prompt_tokens", "handoffs"):
            values: dict[Labels, float] = {(names[key],): float(getattr(load, field)) for key, load in loads.items()}
            yield _gauge("server_" + field, f"{field} of each server now.", ("server",), values)
        opened: dict[Labels, float] = {(names[key],): float(view.state != "closed") for key, view in circuits.items()}
        yield _gauge("circuit_open", "1 while a server is left alone after failures.", ("server",), opened)
        silent: dict[Labels, float] = {(names[key],): float(view.is_silent) for key, view in circuits.items()}
        yield _gauge("server_silent", "1 while a server with work long brought no token.", ("server",), silent)
        used: dict[Labels, float] = {
            (names[key], kind): float(count)
            for key, counts in connections.items()
            for kind, count in zip(KINDS, counts, strict=True)
        }
        yield _gauge("connections", "Connections to each server, and their limit.", ("server", "kind"), used)


KINDS = ("in_use", "idle", "limit")


def _counter(name: str, words: str, labels: Labels, counts: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily("switchyard_router_" + name, words, labels=labels)
    for values, count in counts.items():
        family.add_metric(list(values), count)
    return family


def _gauge(name: str, words: str, labels: Labels, values: Mapping[Labels, float]) -> Metric:
    family = GaugeMetricFamily("switchyard_router_" + name, words, labels=labels)
    for keys, value in values.items():
        family.add_metric(list(keys), value)
    return family


def _kind(error: LegError) -> str:
    if isinstance(error, Answered):
        return f"status {error.status}"
    return "timed out" if isinstance(error, TimedOut) else type(error).__name__
