"""The agent's side of reports: the newest is published, from a thread of its own, on the host's channel."""

import json
import logging
import threading
import time
from collections.abc import Callable

import redis

from console import alive
from console.launch.contracts import HostReport
from console.launch.joining import TIMEOUT_S

REFUSED_FOR_S = 5.0
"""A broker that has restarted knows no host's login until the console has made it again."""
NOBODY = "the console does not take reports: its worker may be down"
REFUSED = (
    "the broker does not take reports: it refuses the login of this host, which the console has revoked, or whose "
    "password has changed. The servers here go on, but no launch comes. To join again, make a join token on the "
    "console's page that adds a host, and start the agent with --console and --token"
)

BETTER = "reports are taken again"

logger = logging.getLogger(__name__)


def channel_of(prefix: str, host: str) -> str:
    """`prefix`: REDIS_PREFIX of the installation."""
    return f"{prefix}:report:{host}"


class ReportChannel:
    """Where one host's reports are published. Nothing is kept there: a report that nobody takes is gone."""

    def __init__(self, broker_url: str, channel: str) -> None:
        self._client = redis.Redis.from_url(broker_url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S)
        self._channel = channel

    def publish(self, report: HostReport) -> int:
        """How many workers heard it. Raises redis.RedisError, OSError."""
        heard = int(self._client.publish(self._channel, json.dumps(report)))
        alive.show()
        return heard

    def close(self) -> None:
        self._client.close()


class Reporter:
    """Publishes the newest report; while the broker does not answer the older ones are dropped.

    `publish` returns how many took it. `after_report` is called after each attempt.
    """

    def __init__(self, publish: Callable[[HostReport], int], after_report: Callable[[], None]) -> None:
        self._publish, self._after_report = publish, after_report
        self._newest: HostReport | None = None
        self._offered = threading.Condition()
        self._ending = False
        self._trouble = ""
        self._refused_since: float | None = None

    def offer(self, report: HostReport) -> None:
        with self._offered:
            self._newest = report
            self._offered.notify()

    def end(self) -> None:
        """Returns at once. A report that is being sent is the last, and no `after_report` is begun any more."""
        with self._offered:
            self._ending = True
            self._offered.notify()

    def run(self) -> None:
        """Until `end`, in a daemon thread."""
        while (report := self._next()) is not None:
            try:
                self._send(report)
                if not self._ending:
                    self._after_report()
            except Exception:
                logger.exception("sending a report failed, the next one is tried")

    def _next(self) -> HostReport | None:
        with self._offered:
            self._offered.wait_for(lambda: self._ending or self._newest is not None)
            report, self._newest = self._newest, None
            return None if self._ending else report

    def _send(self, report: HostReport) -> None:
        try:
            heard = self._publish(report)
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            self._note_refusal(error)
        except (redis.RedisError, OSError) as error:
            self._note("away", f"the broker does not take reports: {error}")
        else:
            self._refused_since = None
            self._note("" if heard else "unheard", NOBODY)

    def _note_refusal(self, error: Exception) -> None:
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since >= REFUSED_FOR_S:
            self._note("refused", REFUSED)
        elif self._trouble != "refused":
            self._note("away", f"the broker does not take reports: {error}")

    def _note(self, trouble: str, words: str) -> None:
        """Once per kind of trouble, not once per report."""
        if trouble != self._trouble:
            logger.log(logging.ERROR if trouble == "refused" else logging.WARNING, words if trouble else BETTER)
        self._trouble = trouble
