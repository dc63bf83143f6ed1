"""An agent that is asked to end while its worker is still being made ends as at any other time."""

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from console.launch.management.commands import agent

BROKER = agent.Broker("redis://127.0.0.1:1/0", "test")


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Worker:
    """Takes signals when it starts, as Celery's does."""

    asked_while_made = False
    heard: list[int]

    def __init__(self, **_: Any) -> None:
        if self.asked_while_made:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_start(self) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: self.heard.append(number))

    def start(self) -> None:
        self.on_start()


@pytest.mark.parametrize("asked", [True, False])
def test_it_breaks_nothing_off_and_ends_as_soon_as_it_runs(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = type("Made", (Worker,), {"asked_while_made": asked, "heard": []})
    conf = SimpleNamespace(update=lambda **_: None, broker_transport_options={})
    monkeypatch.setattr(agent, "app", SimpleNamespace(conf=conf, Worker=worker))
    agent.work("gpu01", BROKER)
    assert worker.heard == ([signal.SIGTERM] if asked else [])
