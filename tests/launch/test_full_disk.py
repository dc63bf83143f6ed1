"""A host whose disk is full: its servers go on, it goes on reporting, and what is asked of it is done."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from console.launch import command
from console.launch.contracts import LaunchSpec
from tests.launch.agents import AgentProcess
from tests.launch.hosts import free_ports
from tests.launch.inputs import launch_inputs

QUICK = {"SIMULATOR_START_S": "0.1", "SIMULATOR_STOP_S": "0.02"}


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


def simulated(server_id: int) -> LaunchSpec:
    return command.build(
        launch_inputs(
            server_id=server_id,
            generation=1,
            engine="simulated",
            model="simulated/model",
            address="127.0.0.1",
            ports=free_ports(),
            role="plain",
            gpu_indexes=(),
            engine_env=QUICK,
        )
    )


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)


def test_a_server_serves_on_is_reported_and_can_be_stopped(agent: AgentProcess, small_disk: Path) -> None:
    agent.start().launch(simulated(7))
    agent.wait_for(7, lambda server: server["healthy"])
    fill(small_disk)
    report = agent.next_report()
    assert report["servers"][0]["healthy"]
    agent.ask("agent.stop", 7, 1, 5)
    agent.wait_for(7, lambda server: server["stop_requested"] and not server["group_pids"])
    assert agent.server_pids() == []


def test_a_launch_is_refused_with_the_reason(agent: AgentProcess, small_disk: Path) -> None:
    agent.start()
    fill(small_disk)
    agent.launch(simulated(8))
    cause = agent.wait_for(8, lambda server: server["cause"])["cause"]
    assert cause is not None
    assert "No space left on device" in cause["message"]
    assert agent.server_pids() == []
