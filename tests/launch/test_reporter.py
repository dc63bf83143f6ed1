"""Reports leave in a thread of their own, the newest first in line, and never pile up."""

import json
import threading
from collections.abc import Callable

import pytest
import redis
from django.conf import settings

from console.launch.contracts import HostReport
from console.launch.reporter import ReportChannel, Reporter
from tests.waiting import LIMIT_S, wait_for


class Channel:
    """Notes what is published; `before` may block or raise like a broker in trouble."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.listeners = 1
        self.before: Callable[[], object] = lambda: None

    def publish(self, report: HostReport) -> int:
        self.before()
        self.sent.append(report["seq"])
        return self.listeners


def report(seq: int) -> HostReport:
    return {"seq": seq}  # type: ignore[typeddict-item]


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def reporter(channel: Channel) -> Reporter:
    made = Reporter(channel.publish, lambda: None)
    threading.Thread(target=made.run, daemon=True).start()
    return made


def test_a_report_is_sent(reporter: Reporter, channel: Channel) -> None:
    reporter.offer(report(1))
    wait_for(lambda: channel.sent == [1])


def test_a_broker_that_does_not_answer_holds_nobody_up_and_gets_the_newest_afterwards(
    reporter: Reporter, channel: Channel
) -> None:
    answers = threading.Event()
    channel.before = lambda: answers.wait(LIMIT_S)
    for seq in range(1, 100):
        reporter.offer(report(seq))
    answers.set()
    wait_for(lambda: channel.sent[-1:] == [99])
    assert len(channel.sent) <= 2


def offer_in_trouble(reporter: Reporter, channel: Channel, trouble: Exception, times: int = 3) -> None:
    attempts: list[int] = []

    def refuse() -> None:
        attempts.append(1)
        raise trouble

    channel.before = refuse
    for seq in range(1, times + 1):
        reporter.offer(report(seq))
        wait_for(lambda seq=seq: len(attempts) == seq)  # type: ignore[misc]


def test_an_outage_is_logged_once_and_its_end_as_well(
    reporter: Reporter, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    offer_in_trouble(reporter, channel, redis.ConnectionError("refused"))
    channel.before = lambda: None
    reporter.offer(report(4))
    wait_for(lambda: "taken again" in caplog.text)
    assert caplog.text.count("does not take reports") == 1


def test_what_nobody_thought_of_ends_no_reporting(
    reporter: Reporter, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    offer_in_trouble(reporter, channel, TypeError("not serializable"), times=1)
    channel.before = lambda: None
    reporter.offer(report(2))
    wait_for(lambda: channel.sent == [2])
    assert "TypeError: not serializable" in caplog.text


def test_a_host_whose_login_was_revoked_says_so_also_when_the_connection_broke_first(
    reporter: Reporter, channel: Channel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.launch.reporter.REFUSED_FOR_S", 0.0)
    offer_in_trouble(reporter, channel, redis.ConnectionError("closed"), times=1)
    offer_in_trouble(reporter, channel, redis.AuthenticationError("invalid username-password pair"))
    wait_for(lambda: "start the agent with --console and --token" in caplog.text)
    assert caplog.text.count("refuses the login of this host") == 1


def test_a_broker_that_has_just_restarted_does_not_count_as_a_revocation(
    reporter: Reporter, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    offer_in_trouble(reporter, channel, redis.AuthenticationError("invalid username-password pair"))
    channel.before = lambda: None
    reporter.offer(report(4))
    wait_for(lambda: "taken again" in caplog.text)
    assert "refuses the login of this host" not in caplog.text


def test_that_nobody_takes_reports_is_said_once(
    reporter: Reporter, channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    channel.listeners = 0
    for seq in (1, 2):
        reporter.offer(report(seq))
        wait_for(lambda seq=seq: channel.sent[-1] == seq if channel.sent else False)  # type: ignore[misc]
    channel.listeners = 1
    reporter.offer(report(3))
    wait_for(lambda: "taken again" in caplog.text)
    assert caplog.text.count("its worker may be down") == 1


def test_a_report_that_is_on_its_way_at_the_end_is_the_last_and_renews_no_name(channel: Channel) -> None:
    sending, go_on, renewals = threading.Event(), threading.Event(), list[int]()

    def wait() -> None:
        sending.set()
        assert go_on.wait(LIMIT_S)

    ending = Reporter(channel.publish, lambda: renewals.append(1))
    thread = threading.Thread(target=ending.run, daemon=True)
    thread.start()
    channel.before = wait
    ending.offer(report(1))
    wait_for(sending.is_set)
    ending.offer(report(2))
    ending.end()
    go_on.set()
    thread.join(LIMIT_S)
    assert (thread.is_alive(), channel.sent, renewals) == (False, [1], [])


def test_an_idle_reporter_ends_when_it_is_asked_to(channel: Channel) -> None:
    ending = Reporter(channel.publish, lambda: None)
    thread = threading.Thread(target=ending.run, daemon=True)
    thread.start()
    ending.end()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_what_nobody_hears_is_not_kept(valkey: "redis.Redis") -> None:
    channel = ReportChannel(settings.REDIS_URL, "test:report:gpu01")
    assert channel.publish(report(1)) == 0
    with valkey.pubsub(ignore_subscribe_messages=True) as heard:  # type: ignore[no-untyped-call]
        heard.subscribe("test:report:gpu01")
        wait_for(lambda: heard.get_message() is None and channel.publish(report(2)) == 1)
        found = wait_for(heard.get_message)
    assert json.loads(found["data"]) == {"seq": 2}
    assert valkey.keys("*") == []
    channel.close()
