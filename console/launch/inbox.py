"""The console's side of hosts' reports: hears all their channels, and hands each on to the domain.

The channel, not the report, says who speaks. Of one host only the newest waits; of several workers each hears all, and
the row says which of them was first.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from django.conf import settings
from django.db import connections

from console import valkey
from console.database import tried_again
from console.launch.contracts import HostReport
from console.launch.reporter import channel_of

AT_ONCE = 4
RETRY_AFTER_S = 0.5
READ_TIMEOUT_S = 5.0
PING_EVERY_S = 5
CLOSE_LIMIT_S = 30.0

logger = logging.getLogger(__name__)


class Inbox:
    """`take` may be called from several threads at once, for different hosts."""

    def __init__(self, take: Callable[[HostReport], object]) -> None:
        self._take = take
        self._newest: dict[str, HostReport] = {}
        self._busy: set[str] = set()
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._listener = threading.Thread(target=self._hear, name="inbox", daemon=True)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="report")

    def start(self) -> None:
        """Returns at once; a daemon thread hears until `end`."""
        self._listener.start()

    def end(self) -> None:
        self._ending.set()
        if self._listener.is_alive():
            self._listener.join()
        together = threading.Barrier(AT_ONCE)
        for _ in range(AT_ONCE):
            self._threads.submit(_close_connections, together)
        self._threads.shutdown()

    def _hear(self) -> None:
        while not self._ending.is_set():
            try:
                self._hear_until_trouble()
            except valkey.Down as error:
                logger.warning("hosts are not heard, the broker does not answer: %s", error)
                self._ending.wait(RETRY_AFTER_S)
            except Exception:
                logger.exception("hearing hosts failed and begins anew")
                self._ending.wait(RETRY_AFTER_S)

    def _hear_until_trouble(self) -> None:
        client = redis.Redis.from_url(
            settings.REDIS_URL,
            socket_connect_timeout=valkey.CONNECT_TIMEOUT_S,
            socket_timeout=READ_TIMEOUT_S,
            health_check_interval=PING_EVERY_S,
        )
        with client, client.pubsub(ignore_subscribe_messages=True) as channels:  # type: ignore[no-untyped-call]
            channels.psubscribe(channel_of(settings.REDIS_PREFIX, "*"))
            while not self._ending.is_set():
                message = channels.get_message(timeout=1.0)
                if message and message["type"] == "pmessage":  # answers to a ping come as well
                    self.accept(message["channel"].decode(), message["data"])

    def accept(self, channel: str, data: bytes) -> None:
        """Drops what is no report, or not the channel's host's own."""
        host = channel.rpartition(":")[2]
        report = _read(data)
        if report is None or report.get("host") != host:
            logger.warning("a report on the channel of %s was dropped: it is not of that host", host)
            return
        with self._lock:
            self._newest[host] = report
            if host in self._busy:
                return
            self._busy.add(host)
        self._threads.submit(self._hand_on, host)

    def _hand_on(self, host: str) -> None:
        """Until nothing newer has come meanwhile.

        Each thread keeps its connection: a new one for each report would cost the database more than the report.
        """
        while (report := self._next(host)) is not None:
            try:
                with tried_again("taking in reports of hosts"):
                    self._take(report)
            except Exception:
                logger.exception("a report of %s could not be taken in", host)
                with contextlib.suppress(Exception):  # or its host would count as being taken in for ever
                    connections.close_all()  # a restarted database is found again

    def _next(self, host: str) -> HostReport | None:
        with self._lock:
            report = None if self._ending.is_set() else self._newest.pop(host, None)
            if report is None:
                self._busy.discard(host)
            return report


def _close_connections(together: threading.Barrier) -> None:
    """Each thread closes its own: `together` keeps one from doing it twice while another does not at all."""
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait(CLOSE_LIMIT_S)
    connections.close_all()


def _read(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
