"""Beat goes on sending what is due when the machine's clock is set."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler

from console.celery import app
from tests.waiting import wait_until


class Listening(Scheduler):
    """Notes what it would send."""

    def setup_schedule(self) -> None:
        self.sent: Counter[str] = Counter()
        super().setup_schedule()
        self.merge_inplace(self.app.conf.beat_schedule)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        self.sent[entry.task] += 1

    @property
    def producer(self) -> Any:
        return None


@pytest.mark.parametrize("jump", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_clock_that_was_set_changes_nothing(jump: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Listening(app)

    def is_sent_more_than(count: int) -> bool:
        scheduler.tick()
        return scheduler.sent["console.tick"] > count and scheduler.sent["traffic.ingest"] > count

    wait_until(lambda: is_sent_more_than(0), "the first of each")
    real_now = Celery.now

    def shifted(self: Celery) -> datetime:
        found: datetime = real_now(self)
        return found + jump

    monkeypatch.setattr(Celery, "now", shifted)
    sent = min(scheduler.sent["console.tick"], scheduler.sent["traffic.ingest"])
    wait_until(lambda: is_sent_more_than(sent), "the next of each")
    assert scheduler.sent["traffic.prune"] == 0  # due each hour by the steady clock, however the other was set
