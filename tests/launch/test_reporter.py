"""Reports leave in a thread of their own, the newest first in line, and never pile up."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.conf import settings
from kombu.exceptions import OperationalError

from console.launch.agent import Reporter
from console.launch.contracts import HostReport
from console.launch.joining import ReportQueue
from tests.launch.hosts import wait_until


class FakeCelery:
    """Notes what is sent; `before` may block or raise like a broker in trouble."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.before: Callable[[], object] = lambda: None

    def send_task(self, name: str, args: list[HostReport], **options: Any) -> None:
        self.before()
        self.sent.append(args[0]["seq"])


def report(seq: int) -> HostReport:
    return {"seq": seq}  # type: ignore[typeddict-item]


@pytest.fixture
def celery() -> FakeCelery:
    return FakeCelery()


@pytest.fixture
def full() -> list[bool]:
    return [False]


@pytest.fixture
def reporter(celery: FakeCelery, full: list[bool]) -> Reporter:
    made = Reporter(celery, lambda: full[0], lambda: None)  # type: ignore[arg-type]
    threading.Thread(target=made.run, daemon=True).start()
    return made


def test_a_report_is_sent(reporter: Reporter, celery: FakeCelery) -> None:
    reporter.offer(report(1))
    wait_until(lambda: celery.sent == [1])


def test_a_broker_that_does_not_answer_holds_nobody_up_and_gets_the_newest_afterwards(
    reporter: Reporter, celery: FakeCelery
) -> None:
    answers = threading.Event()
    celery.before = lambda: answers.wait(10)
    for seq in range(1, 100):
        reporter.offer(report(seq))
    answers.set()
    wait_until(lambda: celery.sent[-1:] == [99])
    assert len(celery.sent) <= 2


def test_an_outage_is_logged_once_and_its_end_as_well(
    reporter: Reporter, celery: FakeCelery, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []

    def refuse() -> None:
        attempts.append(1)
        raise OperationalError("refused")

    celery.before = refuse
    for seq in range(1, 4):
        reporter.offer(report(seq))
        wait_until(lambda seq=seq: len(attempts) == seq)  # type: ignore[misc]
    celery.before = lambda: None
    reporter.offer(report(4))
    wait_until(lambda: "taken again" in caplog.text)
    assert caplog.text.count("does not take reports") == 1


def test_nothing_is_sent_while_the_console_is_behind(
    reporter: Reporter, celery: FakeCelery, full: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    full[0] = True
    reporter.offer(report(1))
    wait_until(lambda: "its worker may be down" in caplog.text)
    full[0] = False
    reporter.offer(report(2))
    wait_until(lambda: celery.sent == [2])


def test_a_thousand_messages_in_the_queue_are_enough(valkey: "redis.Redis") -> None:
    queue = ReportQueue(settings.REDIS_URL, "test:console")
    assert not queue.is_full()
    valkey.lpush("test:console", *["x"] * 1000)
    assert queue.is_full()
    queue.close()


def test_a_broker_that_is_away_counts_as_empty() -> None:
    assert not ReportQueue("redis://127.0.0.1:1/0", "test:console").is_full()
