"""The agent's loop goes on whatever goes wrong in a part of it, and its log says what did."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.launch import agent
from console.launch.agent import Agent, AgentOptions
from console.launch.contracts import HostReport
from console.launch.gpus import SimulatedGpus
from console.launch.reporter import Reporter
from tests.launch.simulated import is_up, simulated
from tests.waiting import LIMIT_S, wait_for, wait_until


class Broken:
    """Fails each time, and counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *arguments: object) -> bool:
        self.calls += 1
        raise RuntimeError("not thought of")


@pytest.fixture
def reports() -> list[HostReport]:
    return []


@pytest.fixture
def running_agent(tmp_path: Path, reports: list[HostReport], monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(agent, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(agent, "FORGET_EVERY_S", 0.0)
    options = AgentOptions("gpu01", "127.0.0.1", tmp_path / "state", (1, 2), None, SimulatedGpus(1), 0.02)

    def note(report: HostReport) -> int:
        reports.append(report)
        return 1

    with agent.running(options, Reporter(note, lambda: None)) as started:
        yield started


@pytest.mark.parametrize("part", ["look", "observations", "live", "forget_old"])
def test_a_part_that_fails_is_logged_and_tried_again(
    part: str,
    running_agent: Agent,
    reports: list[HostReport],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Broken()
    with monkeypatch.context() as patched:
        patched.setattr(running_agent.starts, part, broken)
        wait_for(lambda: broken.calls >= 3)
    assert "RuntimeError: not thought of" in caplog.text
    seen = len(reports)
    wait_for(lambda: len(reports) > seen)


def test_a_server_that_cannot_be_asked_is_asked_again(
    running_agent: Agent,
    reports: list[HostReport],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, spec = Broken(), simulated()
    with monkeypatch.context() as patched:
        patched.setattr(agent, "probe", broken)
        running_agent.launch(spec)
        wait_for(lambda: broken.calls >= 3)
    assert f"asking {spec['name']} failed" in caplog.text
    wait_for(lambda: any(map(is_up, reports[-1]["servers"])))
    running_agent.stop(spec["server_id"], 1, 0)
    wait_for(lambda: not running_agent.starts.live())


def test_an_agent_that_ends_in_the_middle_of_a_look_asks_no_server_any_more(
    running_agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reached, go_on, spec = threading.Event(), threading.Event(), simulated()

    def offer(report: HostReport) -> None:
        reached.set()
        assert go_on.wait(LIMIT_S)

    with monkeypatch.context() as patched:
        patched.setattr(running_agent.reporter, "offer", offer)
        wait_until(reached.is_set)
        running_agent.launch(spec)
        running_agent.end()
        go_on.set()
        wait_until(lambda: not is_at_work("observe"))
    running_agent.stop(spec["server_id"], 1, 0)

    def is_gone() -> bool:
        running_agent.starts.look()
        return not running_agent.starts.live()

    wait_until(is_gone)
    assert "failed" not in caplog.text


def is_at_work(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())
