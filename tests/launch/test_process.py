"""Processes by pid and start tick, their groups, and what of the agent's environment a server sees."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from console.launch import process
from console.launch.process import Identity
from tests.waiting import wait_for

Child = subprocess.Popen[bytes]
OURS = f"tests-of-{os.getpid()}"
"""Markers are looked for on the whole machine."""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A shell with a worker in its group and another one in a group of its own."""
    script = "sleep 600 & set -m; sleep 600 & echo up; wait"
    environment = process.child_environment(os.environ, {}, f"{OURS}:1:1:")
    started = process.spawn(["bash", "-c", script], environment, tmp_path / "log", None)
    wait_for(lambda: "up" in (tmp_path / "log").read_text())
    yield started
    process.kill(process.Group(tuple(process.marked(f"{OURS}:"))))
    started.wait()


def identity_of(child: Child) -> Identity:
    found = process.identify(child.pid)
    assert found is not None
    return found


def test_a_process_is_itself(child: Child) -> None:
    assert process.is_running(identity_of(child))


@pytest.mark.parametrize("field", ["start_tick", "boot_id"])
def test_the_same_pid_alone_is_not_enough(child: Child, field: str) -> None:
    own = identity_of(child)
    other = {"start_tick": own.start_tick + 1, "boot_id": "another"}[field]
    assert not process.is_running(Identity(**{**own.__dict__, field: other}))


def test_a_zombie_does_not_run(child: Child) -> None:
    own = identity_of(child)
    os.kill(child.pid, signal.SIGKILL)
    wait_for(lambda: not process.is_running(own))
    assert child.returncode is None


def test_its_start_time_is_now(child: Child) -> None:
    import time

    assert abs(process.started_at(identity_of(child)) - time.time()) < 30


def test_the_group_holds_what_moved_to_another_group_of_the_session(child: Child) -> None:
    own = identity_of(child)
    group = process.groups_of([own])[child.pid]
    assert len(group.pids) == 3
    assert child.pid in group.pids


def test_members_are_found_when_the_main_process_is_gone(child: Child) -> None:
    own = identity_of(child)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert len(process.groups_of([own])[child.pid].pids) == 2


def test_killing_empties_the_group(child: Child) -> None:
    own = identity_of(child)
    process.kill(process.groups_of([own])[child.pid])
    wait_for(lambda: not process.groups_of([own])[child.pid])


def test_a_group_whose_leader_has_another_start_tick_is_not_ours(child: Child) -> None:
    own = identity_of(child)
    assert not process.groups_of([Identity(own.pid, own.start_tick - 1, own.boot_id)])[own.pid]


def test_strangers_in_a_group_without_leader_are_not_ours() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    assert shell.stdout is not None
    stranger = int(shell.stdout.readline())
    shell.stdout.close()
    shell.wait()
    try:
        assert not process.groups_of([Identity(shell.pid, 1, process.boot_id())])[shell.pid]
    finally:
        os.kill(stranger, signal.SIGKILL)


def test_groups_of_an_earlier_boot_are_left_out(child: Child) -> None:
    own = identity_of(child)
    assert process.groups_of([Identity(own.pid, own.start_tick, "another")]) == {}


def test_a_start_is_found_by_its_marker(child: Child) -> None:
    assert process.find_start(f"{OURS}:1:1:") == identity_of(child)
    assert process.find_start(f"{OURS}:1:2:") is None
    assert len(process.marked(f"{OURS}:1:")) == 3


def test_a_process_is_found_by_its_marker_from_its_first_moment_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows no environment while a process becomes another program; a look at all others would hide that."""
    environment = process.child_environment(os.environ, {}, f"{OURS}:1:1:")
    for _ in range(100):
        child = process.spawn(["sleep", "600"], environment, tmp_path / "log", None)
        monkeypatch.setattr(process, "_pids", partial(list, [child.pid]))
        try:
            assert process.marked(f"{OURS}:") == [child.pid]
        finally:
            child.kill()
            child.wait()


def test_a_process_that_becomes_another_program_between_two_looks_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = tmp_path / "7" / "environ"
    environ.parent.mkdir()
    environ.write_bytes(b"")

    def has_just_become_it(pid: int) -> bool:
        environ.write_bytes(b"A=1\0")
        return False

    monkeypatch.setattr(process, "PROC", tmp_path)
    monkeypatch.setattr(process, "_is_in_exec", has_just_become_it)
    assert process._environment(7) == b"A=1\0"


def test_a_start_of_which_only_workers_are_left_is_found_as_a_group(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    found = process.find_start(f"{OURS}:1:1:")
    assert found is not None
    assert not process.is_running(found)
    assert len(process.groups_of([found])[found.pid].pids) == 2


def test_signals_to_a_process_that_is_gone_do_nothing(child: Child) -> None:
    own = identity_of(child)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    process.terminate(own)
    process.kill(process.Group((child.pid,)))


def test_a_server_lives_in_a_session_of_its_own_with_its_output_in_the_log(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == ''); print('x', file=sys.stderr)"
    process.spawn([sys.executable, "-c", script], os.environ, tmp_path / "log", None).wait()
    assert (tmp_path / "log").read_text() == "True True\nx\n" or (tmp_path / "log").read_text() == "x\nTrue True\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    process.spawn(["echo", "after"], os.environ, tmp_path / "log", None).wait()
    assert (tmp_path / "log").read_text() == "before\nafter\n"


def test_a_server_does_not_see_broker_database_or_settings() -> None:
    inherited = {
        "REDIS_URL": "redis://:secret@broker",
        "REDIS_PREFIX": "x",
        "DATABASE_URL": "postgres://",
        "SECRET_KEY": "s",
        "DJANGO_SETTINGS_MODULE": "console.settings",
        "CELERY_BROKER_URL": "redis://",
        "SWITCHYARD_TOKEN": "t",
        "VLLM_PORT": "5000",
        "PATH": "/bin",
        "HF_TOKEN": "hf",
    }
    seen = process.child_environment(inherited, {"VLLM_NO_USAGE_STATS": "1"}, "m")
    assert seen == {
        "PATH": "/bin",
        "HF_TOKEN": "hf",
        "VLLM_NO_USAGE_STATS": "1",
        "SPT_NOENV": "1",
        "SWITCHYARD_START": "m",
    }
