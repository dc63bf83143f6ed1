"""`/metrics`: the router's own figures and those of the web process, for a token's owner."""

from collections.abc import Iterator

from django.conf import settings
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from console.accounts import tokens
from console.background import Background
from console.gateway.pages_process import PagesProcess
from console.gateway.reports import Reports
from console.gateway.sync import Sync


class WebMetrics(Collector):
    def __init__(self, reports: Reports, sync: Sync, background: Background, pages: PagesProcess) -> None:
        self._reports, self._sync, self._background, self._pages = reports, sync, background, pages

    def collect(self) -> Iterator[Metric]:
        yield _gauge("routing_epoch", "Epoch of the table that is served.", self._sync.epoch)
        yield _gauge("viewers", "Open sockets of the live view.", self._pages.figures.get("viewers", 0))
        yield _counter("pages_restarts", "Ends of the pages' process that were not asked for.", self._pages.restarts)
        yield _gauge("records_waiting", "Finished requests not yet handed over.", len(self._reports.records))
        yield _counter("records_dropped", "Finished requests lost for want of room.", self._reports.records.dropped)
        yield _counter("live_batches_dropped", "Live batches lost for want of room.", self._reports.live.dropped)
        yield _counter("loop_restarts", "Background loops that crashed.", self._loop_restarts())

    def _loop_restarts(self) -> int:
        return self._background.restarts + int(self._pages.figures.get("loop_restarts", 0))


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"switchyard_web_{name}", words, value=value)


def _counter(name: str, words: str, value: float) -> Metric:
    return CounterMetricFamily(f"switchyard_web_{name}", words, value=value)


def may_read(authorization: str) -> bool:
    """Any valid API token will do, unless METRICS_OPEN. Asks the database."""
    if settings.METRICS_OPEN:
        return True
    scheme, _, plain = authorization.partition(" ")
    return scheme.lower() == "bearer" and tokens.find(plain.strip()) is not None
