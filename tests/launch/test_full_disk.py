"""A host whose disk is full: its servers go on, it goes on reporting, and what is asked of it is done."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.launch.agents import AgentProcess
from tests.launch.simulated import is_up, simulated


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def agent(valkey: "redis.Redis", small_disk: Path, tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(valkey, tmp_path)
    made.state_dir = small_disk / "state"
    yield made
    made.end()


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)


def test_a_server_serves_on_is_reported_and_can_be_stopped(agent: AgentProcess, small_disk: Path) -> None:
    spec = simulated()
    agent.start().launch(spec)
    agent.wait_for(spec["server_id"], is_up)
    fill(small_disk)
    agent.next_report()
    agent.wait_for(spec["server_id"], is_up)
    agent.ask("agent.stop", spec["server_id"], 1, 5)
    agent.wait_for(spec["server_id"], lambda server: server["stop_requested"] and not server["group_pids"])
    assert agent.server_pids() == []


def test_a_launch_is_refused_with_the_reason(agent: AgentProcess, small_disk: Path) -> None:
    spec = simulated()
    agent.start()
    fill(small_disk)
    agent.launch(spec)
    cause = agent.wait_for(spec["server_id"], lambda server: server["cause"])["cause"]
    assert cause is not None
    assert "No space left on device" in cause["message"]
    assert agent.server_pids() == []
