"""A new agent goes on where the last one ended, however it ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.launch import agent, process, starts, watch
from console.launch.agent import Agent, AgentOptions
from console.launch.contracts import LaunchSpec
from console.launch.gpus import SimulatedGpus
from console.launch.reporter import Reporter
from console.launch.statefile import Start, StateDir, StateDirInUse
from tests.launch.conftest import MakeHost
from tests.launch.hosts import STUBBORN, TestHost
from tests.waiting import wait_for, wait_until

LISTENING = "print('version 0.31.0')\nprint('INFO:     Application startup complete.', flush=True)\ntime.sleep(600)"


def test_running_servers_are_adopted_by_pid_and_start_time(host: TestHost) -> None:
    host.launch()
    before = host.seen()
    host.new_agent().adopt()
    after = host.seen()
    assert (after["alive"], after["pid"], after["generation"]) == (True, before["pid"], 1)
    assert after["process_started_at"] == before["process_started_at"]


def test_a_launch_delivered_to_the_new_agent_starts_nothing(host: TestHost) -> None:
    spec = host.launch()
    host.new_agent().adopt()
    host.starts.launch(spec)
    assert host.pids() == [host.seen()["pid"]]


def test_phase_and_times_are_remembered(make_host: MakeHost) -> None:
    host = make_host(LISTENING)
    host.launch()
    before = host.wait(lambda seen: seen["phase"] == "listening")
    host.new_agent().adopt()
    after = host.seen()
    assert (after["phase"], after["version"], after["phase_times"]) == ("listening", "0.31.0", before["phase_times"])


def test_a_pid_that_was_given_away_again_is_not_ours(host: TestHost) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        own = process.identify(stranger.pid)
        assert own is not None
        save(host, process.Identity(own.pid, own.start_tick - 5, own.boot_id))
        host.new_agent().adopt()
        seen = host.seen()
        assert (seen["alive"], seen["group_pids"]) == (False, [])
        host.starts.stop(7, 1, drain_s=0)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_pid_of_an_earlier_boot_is_not_ours(host: TestHost) -> None:
    host.launch()
    identity = host.starts.live()[0].start.identity
    assert identity is not None
    save(host, process.Identity(identity.pid, identity.start_tick, "another boot"))
    host.new_agent().adopt()
    seen = host.seen()
    assert (seen["alive"], seen["group_pids"]) == (False, [])


def test_a_server_that_ended_meanwhile_is_reported_with_its_cause(make_host: MakeHost) -> None:
    host = make_host("time.sleep(0.2)\nprint('vllm: error: unrecognized arguments: --foo')\nsys.exit(2)")
    host.launch()
    identity = host.starts.live()[0].start.identity  # without a look, which might see the end already
    assert identity is not None
    wait_for(lambda: not process.is_running(identity))
    host.new_agent().adopt()
    seen = host.seen()
    assert (seen["alive"], seen["exit_code"]) == (False, None)
    assert seen["cause"] is not None
    assert seen["cause"]["code"] == "bad_argument"


def test_a_stop_under_way_is_carried_on(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KILL_GRACE_S", 0.3)
    host = make_host(STUBBORN)
    host.launch_until_up()
    host.starts.stop(7, 1, drain_s=0)
    host.new_agent().adopt()
    seen = host.wait(lambda seen: not seen["group_pids"])
    assert seen["stop_requested"]
    assert host.pids() == []


def test_orphans_are_found_again(make_host: MakeHost) -> None:
    host = make_host("subprocess.Popen(['sleep', '600'])\ntime.sleep(600)")
    host.launch()
    pid = host.wait(lambda seen: len(seen["group_pids"]) == 2)["pid"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    host.new_agent().adopt()
    seen = host.wait(lambda seen: not seen["alive"])
    assert len(seen["group_pids"]) == 1


def test_what_has_ended_is_still_known(host: TestHost) -> None:
    host.launch()
    host.starts.stop(7, 1, drain_s=0)
    host.wait(lambda seen: not seen["group_pids"])
    host.new_agent().adopt()
    assert host.seen()["stop_requested"]


def test_an_agent_killed_right_after_the_fork_leaves_one_process(host: TestHost) -> None:
    die_in_launch(host, host.spec(), "fork")
    [pid] = host.pids()
    host.new_agent().adopt()
    seen = host.seen()
    assert (seen["alive"], seen["pid"]) == (True, pid)
    assert host.pids() == [pid]


def test_an_agent_killed_right_before_the_fork_is_finished_by_the_next(host: TestHost) -> None:
    die_in_launch(host, host.spec(), "intention")
    assert host.pids() == []
    host.new_agent().adopt()
    assert host.pids() == [host.seen()["pid"]]


def test_an_old_intention_is_not_carried_out_any_more(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "RESUME_WITHIN_S", 0.0)
    die_in_launch(host, host.spec(), "intention")
    host.new_agent().adopt()
    seen = host.seen()
    assert seen["cause"] is not None
    assert (seen["pid"], seen["cause"]["code"]) == (None, "agent_died")
    assert host.pids() == []


def test_a_state_file_that_cannot_be_read_does_not_stop_the_others(host: TestHost) -> None:
    host.launch()
    broken = host.folder / "state" / "servers" / "8" / "1.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    host.new_agent().adopt()
    assert host.seen()["alive"]


@pytest.fixture
def agent_without_a_turn(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Takes tasks where a server runs already, while its loop has not come to look around yet."""
    host.launch()
    monkeypatch.setattr(Agent, "run", lambda self: None)
    options = AgentOptions("gpu01", "127.0.0.1", host.folder / "state", (1, 2), host.vllm, SimulatedGpus(1), 1.0)
    with agent.running(options, Reporter(lambda report: 1, lambda: None)) as started:
        yield started


def test_a_launch_that_waited_for_the_agent_starts_nothing_that_runs_already(
    host: TestHost, agent_without_a_turn: Agent
) -> None:
    [pid] = host.pids()
    agent_without_a_turn.launch(host.spec())
    [seen] = agent_without_a_turn.starts.observations()
    assert (seen["pid"], seen["cause"], host.pids()) == (pid, None, [pid])


def test_a_stop_that_waited_for_the_agent_ends_what_runs(host: TestHost, agent_without_a_turn: Agent) -> None:
    agent_without_a_turn.stop(7, 1, drain_s=0)

    def is_gone() -> bool:
        agent_without_a_turn.starts.look()
        return not host.pids()

    wait_until(is_gone)


def test_two_agents_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.launch.statefile.LOCK_WAIT_S", 0.0)
    with StateDir(tmp_path).owned(), pytest.raises(StateDirInUse, match=str(os.getpid())), StateDir(tmp_path).owned():
        pass


def save(host: TestHost, identity: process.Identity) -> None:
    start = Start(host.spec(), 7, 1, intended_at=time.time(), identity=identity)
    StateDir(host.folder / "state").save(start)


DYING_AGENT = """
import json, os, pathlib, signal, sys
from console.launch import process
from console.launch.starts import Starts
from console.launch.statefile import StateDir

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

folder, vllm, moment, spec = sys.argv[1:]
if moment == "intention":
    process.spawn = die
else:
    Starts._take_process = die
Starts(StateDir(pathlib.Path(folder)), pathlib.Path(vllm), lambda *_: None).launch(json.loads(spec))
"""


def die_in_launch(host: TestHost, spec: LaunchSpec, moment: str) -> None:
    arguments = [str(host.folder / "state"), str(host.vllm), moment, json.dumps(spec)]
    ended = subprocess.run([sys.executable, "-c", DYING_AGENT, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL
