"""An agent that is asked to end while its worker is still being made ends as at any other time, and by Ctrl-C too."""

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
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Worker:
    """Takes signals when it starts, as Celery's does."""

    asked_while_made = False
    interrupted = False
    heard: list[int]

    def __init__(self, **_: Any) -> None:
        if self.asked_while_made:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_start(self) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: self.heard.append(number))

    def start(self) -> None:
        self.on_start()
        if self.interrupted:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("asked", [True, False])
def test_it_breaks_nothing_off_and_ends_as_soon_as_it_runs(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert heard(monkeypatch, asked_while_made=asked) == ([signal.SIGTERM] if asked else [])


def test_ctrl_c_ends_it_as_gently_and_says_that_its_servers_run_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert heard(monkeypatch, interrupted=True) == [signal.SIGTERM]
    assert "gpu01 ends once what it was asked to do is done; its servers run on." in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGQUIT)


def heard(monkeypatch: pytest.MonkeyPatch, **facts: bool) -> list[int]:
    """The signals that come to Celery's handlers."""
    worker: Any = type("Made", (Worker,), {**facts, "heard": []})
    conf = SimpleNamespace(update=lambda **_: None, broker_transport_options={})
    monkeypatch.setattr(agent, "app", SimpleNamespace(conf=conf, Worker=worker))
    agent.work("gpu01", BROKER)
    found: list[int] = worker.heard
    return found
