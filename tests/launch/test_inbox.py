"""The console hears every host on the host's own channel, and believes nobody about another."""

import json
import threading
from collections.abc import Callable, Iterator

import pytest
import redis
from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from console.launch.contracts import HostReport
from console.launch.inbox import AT_ONCE, Inbox
from console.launch.reporter import channel_of
from tests.waiting import LIMIT_S, wait_for

GPU01 = channel_of(settings.REDIS_PREFIX, "gpu01")
pytestmark = pytest.mark.django_db(transaction=True)


class Taken:
    """What the domain was given; `before` may block."""

    def __init__(self) -> None:
        self.reports: list[HostReport] = []
        self.before: Callable[[], object] = lambda: None

    def take(self, report: HostReport) -> None:
        self.before()
        self.reports.append(report)

    @property
    def seqs(self) -> list[int]:
        return [report["seq"] for report in self.reports]


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def inbox(taken: Taken) -> Iterator[Inbox]:
    made = Inbox(taken.take)
    yield made
    made.end()


def said(host: str, seq: int) -> bytes:
    return json.dumps({"host": host, "seq": seq}).encode()


def test_a_published_report_is_taken_in(inbox: Inbox, taken: Taken, valkey: "redis.Redis") -> None:
    inbox.start()
    wait_for(lambda: valkey.publish(GPU01, said("gpu01", 1)) and taken.reports)
    assert taken.reports[0]["host"] == "gpu01"


def test_the_inbox_comes_back_when_its_connection_is_cut(inbox: Inbox, taken: Taken, valkey: "redis.Redis") -> None:
    inbox.start()
    wait_for(lambda: valkey.publish(GPU01, said("gpu01", 1)) and 1 in taken.seqs)
    valkey.client_kill_filter(_type="pubsub")
    wait_for(lambda: valkey.publish(GPU01, said("gpu01", 2)) and 2 in taken.seqs)


def test_a_report_on_the_channel_of_another_host_is_dropped(
    inbox: Inbox, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    for data in (said("gpu02", 1), b"{", b"[]", b"7", b"\xff"):
        inbox.accept(GPU01, data)
    inbox.accept(GPU01, said("gpu01", 2))
    wait_for(lambda: taken.seqs == [2])
    assert caplog.text.count("on the channel of gpu01 was dropped") == 5


def test_of_one_host_only_the_newest_waits(inbox: Inbox, taken: Taken) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(LIMIT_S)

    taken.before = hold
    inbox.accept(GPU01, said("gpu01", 1))
    begun.wait(LIMIT_S)
    for seq in range(2, 50):
        inbox.accept(GPU01, said("gpu01", seq))
    go_on.set()
    wait_for(lambda: 49 in taken.seqs)
    assert taken.seqs == [1, 49]


def test_a_report_that_cannot_be_taken_in_does_not_keep_the_next_one_out(
    inbox: Inbox, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:

    def fail_once() -> None:
        taken.before = lambda: None
        raise RuntimeError("no room")

    taken.before = fail_once
    inbox.accept(GPU01, said("gpu01", 1))
    wait_for(lambda: "could not be taken in" in caplog.text)
    inbox.accept(GPU01, said("gpu01", 2))
    wait_for(lambda: taken.seqs == [2])


def test_a_connection_that_cannot_be_closed_does_not_keep_the_next_report_out(
    inbox: Inbox, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def refuse() -> None:
        refused.set()
        raise RuntimeError("cannot be closed")

    def fail_once() -> None:
        taken.before = lambda: None
        raise RuntimeError("no room")

    taken.before = fail_once
    with monkeypatch.context() as patched:
        patched.setattr(connections, "close_all", refuse)
        inbox.accept(GPU01, said("gpu01", 1))
        assert refused.wait(LIMIT_S)
    inbox.accept(GPU01, said("gpu01", 2))
    wait_for(lambda: taken.seqs == [2])


def test_a_thread_keeps_its_connection_until_the_end(taken: Taken) -> None:
    used: list[tuple[BaseDatabaseWrapper, object]] = []

    def connect() -> None:
        connections["default"].ensure_connection()
        used.append((connections["default"], connections["default"].connection))

    taken.before = connect
    inbox = Inbox(taken.take)
    for number in range(12):
        inbox.accept(channel_of(settings.REDIS_PREFIX, f"gpu{number}"), said(f"gpu{number}", 1))
    wait_for(lambda: len(taken.seqs) == 12)
    assert len({id(connection) for _, connection in used}) == len({id(wrapper) for wrapper, _ in used}) <= AT_ONCE
    inbox.end()
    assert {wrapper.connection for wrapper, _ in used} == {None}
