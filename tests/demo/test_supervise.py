"""The supervisor of a local run: restarts what dies, ends what it started, finds what a killed one left."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from console.demo import supervise
from console.demo.children import Child, ChildSpec, end_leftovers
from console.demo.supervise import CannotRun, StopAsked, Supervisor
from console.demo.up import Place, start_valkey
from tests.waiting import wait_until

SLEEPER = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); " + (
    "print('born', flush=True); time.sleep(600)"
)


def python(name: str, code: str) -> ChildSpec:
    return ChildSpec(name, [sys.executable, "-c", code], dict(os.environ))


def group_members(group: int) -> list[int]:
    def is_member(process: psutil.Process) -> bool:
        try:
            return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False

    return [process.pid for process in psutil.process_iter() if is_member(process)]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with Supervisor(tmp_path, said.append) as supervisor:
        yield supervisor
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_child_that_dies_is_started_again_and_named(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.start(python("worker", SLEEPER))
    first = supervisor.children["worker"].process.pid
    os.kill(first, signal.SIGKILL)

    def is_running_again() -> bool:
        supervisor.watch()
        child = supervisor.children["worker"]
        return child.process.pid != first and child.exit_code is None

    wait_until(is_running_again)
    assert said == [f"worker ended, killed by SIGKILL; it starts again. Its log: {supervisor.data_dir}/log/worker.log"]


def test_one_that_has_lived_well_is_started_again_at_once(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LIVED_WELL_S", 0.0)
    supervisor.start(python("web", SLEEPER))
    first = supervisor.children["web"].process
    first.kill()
    first.wait()
    supervisor.watch()
    supervisor.watch()
    assert supervisor.children["web"].process is not first


def test_a_child_that_keeps_dying_ends_the_run_with_its_last_lines(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LONGEST_WAIT_S", 0.0)
    supervisor.start(python("web", "raise SystemExit('the port is taken')"))
    with pytest.raises(CannotRun, match=r"web ended 6 times in a row, with exit code 1(.|\n)*the port is taken"):
        supervisor.run_forever()


def test_what_a_dead_child_had_started_dies_before_it_starts_again(supervisor: Supervisor) -> None:
    supervisor.start(python("agent", PARENT))
    child = supervisor.children["agent"]
    wait_until(lambda: "born" in child.last_lines())
    os.kill(child.process.pid, signal.SIGKILL)
    wait_until(lambda: child.exit_code is not None)
    supervisor.watch()
    wait_until(lambda: group_members(child.process.pid) == [])


def test_stopping_ends_deaf_children_too(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "TERM_WAIT_S", 0.3)
    supervisor.start(python("deaf", DEAF))
    supervisor.start(python("sleeper", SLEEPER))
    groups = [child.process.pid for child in supervisor.children.values()]
    wait_until(lambda: "deaf" in supervisor.children["deaf"].last_lines())
    supervisor.stop()
    assert [member for group in groups for member in group_members(group)] == []


def test_the_broker_ends_after_the_others(supervisor: Supervisor) -> None:
    order = supervisor.data_dir / "order"
    note = f"""
import signal, sys, time
def end(*_):
    open({str(order)!r}, "a").write(sys.argv[1] + " ")
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""
    for name in ("valkey", "web"):
        spec = ChildSpec(name, [sys.executable, "-c", note, name], dict(os.environ))
        supervisor.start(spec, ends_last=name == "valkey")
    wait_until(lambda: all("up" in child.last_lines() for child in supervisor.children.values()))
    supervisor.stop()
    assert order.read_text() == "web valkey "


def test_what_an_ended_child_had_started_is_gone_too_when_the_run_has_ended(supervisor: Supervisor) -> None:
    supervisor.start(python("agent", PARENT))
    child = supervisor.children["agent"]
    wait_until(lambda: "born" in child.last_lines())
    supervisor.stop()
    assert group_members(child.process.pid) == []


def test_a_broker_that_cannot_start_ends_the_run_with_its_last_lines(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.embedded.START_LIMIT_S", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("VALKEY_PORT", str(taken.getsockname()[1]))
        with pytest.raises(CannotRun, match=r"The broker did not start(.|\n)*Address already in use"):
            start_valkey(supervisor, Place(supervisor.data_dir, "127.0.0.1", 8000))


def test_a_signal_ends_the_wait(supervisor: Supervisor) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StopAsked):
        supervisor.run_forever()


def test_a_second_run_with_the_same_folder_is_refused(supervisor: Supervisor) -> None:
    with pytest.raises(CannotRun, match="already runs with the data folder"):
        Supervisor(supervisor.data_dir, print).__enter__()


def test_what_a_killed_supervisor_left_is_ended_by_the_next(tmp_path: Path) -> None:
    left = Child(python("worker", DEAF), tmp_path)
    wait_until(lambda: "deaf" in left.last_lines())
    assert end_leftovers(tmp_path, limit_s=0.3) == ["worker"]
    assert group_members(left.process.pid) == []
    left.process.wait()


def test_a_stranger_with_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True) as stranger:
        mark = tmp_path / "run" / "worker.json"
        mark.parent.mkdir()
        mark.write_text(f'{{"pid": {stranger.pid}, "created": 1.0}}')
        assert end_leftovers(tmp_path) == []
        assert stranger.poll() is None
        stranger.kill()


def test_children_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from console.demo.children import Child, ChildSpec
child = Child(ChildSpec("worker", [sys.executable, "-c", {SLEEPER!r}], dict(os.environ)), Path({str(tmp_path)!r}))
print(child.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        supervisor.kill()
    wait_until(lambda: group_members(child) == [])
