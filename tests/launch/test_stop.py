"""Ending a server: SIGTERM to the main process, time to drain, SIGKILL to the whole group, until nothing is left."""

import signal
import time

import pytest

from console.launch import process, watch
from tests.launch.conftest import MakeHost
from tests.launch.hosts import STUBBORN, TestHost

WITH_A_WORKER = "subprocess.Popen(['sleep', '600'])\ntime.sleep(600)"
WITH_A_WORKER_THAT_LEFT = (
    "subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('up', flush=True)\ntime.sleep(600)"
)
LISTENING = "print('INFO:     Application startup complete.', flush=True)\n"


def test_a_server_that_heeds_sigterm_ends_with_its_exit_code(make_host: MakeHost) -> None:
    host = make_host("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('up', flush=True)\ntime.sleep(600)")
    host.launch_until_up()
    host.starts.stop(7, 1, drain_s=30)
    seen = host.wait(lambda seen: not seen["group_pids"])
    assert (seen["alive"], seen["exit_code"], seen["stop_requested"], seen["cause"]) == (False, 0, True, None)


def test_stopping_returns_at_once(make_host: MakeHost) -> None:
    host = make_host(STUBBORN)
    host.launch_until_up()
    host.starts.stop(7, 1, drain_s=30)
    assert host.seen()["alive"]


def test_a_server_that_ignores_sigterm_is_killed_when_its_time_is_over(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KILL_GRACE_S", 0.3)
    host = make_host(STUBBORN)
    host.launch_until_up()
    host.starts.stop(7, 1, drain_s=0)
    seen = host.wait(lambda seen: not seen["group_pids"])
    assert seen["exit_code"] == -signal.SIGKILL


def test_a_listening_server_gets_its_time_to_drain(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KILL_GRACE_S", 0.0)
    host = make_host(LISTENING + STUBBORN)
    host.launch()
    host.wait(lambda seen: seen["phase"] == "listening")
    host.starts.stop(7, 1, drain_s=600)
    assert host.seen()["alive"]


def test_a_server_that_still_loads_has_nothing_to_drain(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KILL_GRACE_S", 0.0)
    host = make_host(STUBBORN)
    host.launch_until_up()
    host.starts.stop(7, 1, drain_s=600)
    host.wait(lambda seen: not seen["group_pids"])


def test_a_second_stop_can_only_shorten_the_wait(make_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KILL_GRACE_S", 0.0)
    host = make_host(LISTENING + STUBBORN)
    host.launch()
    host.wait(lambda seen: seen["phase"] == "listening")
    host.starts.stop(7, 1, drain_s=600)
    host.starts.stop(7, 1, drain_s=0)
    host.starts.stop(7, 1, drain_s=600)
    host.wait(lambda seen: not seen["group_pids"])


def test_the_main_process_alone_gets_sigterm(make_host: MakeHost) -> None:
    told = "signal.signal(signal.SIGTERM, lambda *_: print('worker was told', flush=True))"
    worker = f"import signal, time; {told}; print('worker is up', flush=True); [time.sleep(1) for _ in range(600)]"
    host = make_host(f"subprocess.Popen([sys.executable, '-u', '-c', {worker!r}])\n{STUBBORN}")
    host.launch()
    host.wait(lambda seen: "worker is up" in host.log())
    host.starts.stop(7, 1, drain_s=30)
    host.wait(lambda seen: "not now" in host.log())
    assert "worker was told" not in host.log()


def test_workers_that_outlive_their_main_process_are_killed(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LINGER_S", 0.2)
    host = make_host(WITH_A_WORKER)
    host.launch()
    host.wait(lambda seen: len(seen["group_pids"]) == 2)
    host.starts.stop(7, 1, drain_s=600)
    host.wait(lambda seen: not seen["group_pids"])
    assert host.pids() == []


def test_a_worker_that_left_the_session_is_killed_with_the_rest(make_host: MakeHost) -> None:
    host = make_host(WITH_A_WORKER_THAT_LEFT)
    host.launch_until_up()
    host.starts.stop(7, 1, drain_s=0)
    host.wait(lambda seen: not seen["group_pids"])
    assert host.pids() == []


def test_a_start_is_not_over_while_a_worker_that_left_the_session_lives(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(WITH_A_WORKER_THAT_LEFT)
    host.launch_until_up()
    host.seen()
    with monkeypatch.context() as patched:
        patched.setattr(process, "kill", lambda group: None)
        host.starts.stop(7, 1, drain_s=0)
        host.wait(lambda seen: not seen["alive"])
        assert host.seen()["group_pids"] == host.seen()["group_pids"] == host.pids() != []
        monkeypatch.setattr(watch, "STUCK_AFTER_S", 0.0)
        seen = host.wait(lambda seen: seen["cause"] is not None)
        assert seen["cause"] is not None
        assert seen["cause"]["code"] == "stuck"
    host.wait(lambda seen: not seen["group_pids"])
    assert (host.starts.live(), host.pids()) == ([], [])


def test_stopping_an_earlier_start_leaves_the_present_one_alone(host: TestHost) -> None:
    host.launch(generation=2)
    host.starts.stop(7, 1, drain_s=0)
    seen = host.seen()
    assert (seen["generation"], seen["alive"], seen["stop_requested"]) == (2, True, False)


def test_a_start_that_the_host_never_saw_is_reported_as_gone(host: TestHost) -> None:
    host.starts.stop(99, 4, drain_s=0)
    seen = host.seen(99)
    assert (seen["generation"], seen["pid"], seen["alive"], seen["group_pids"]) == (4, None, False, [])
    assert seen["stop_requested"]


def test_processes_that_the_kernel_does_not_end_are_called_stuck(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "KILL_GRACE_S", 0.0)
    monkeypatch.setattr(watch, "STUCK_AFTER_S", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(process, "kill", lambda group: None)
        host = make_host(STUBBORN)
        host.launch_until_up()
        host.starts.stop(7, 1, drain_s=0)
        seen = host.wait(lambda seen: seen["cause"] is not None)
    assert seen["cause"] is not None
    assert seen["cause"]["code"] == "stuck"


def test_a_jump_of_the_clock_neither_hurries_nor_forgets_a_stop(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(LISTENING + STUBBORN)
    host.launch()
    host.wait(lambda seen: seen["phase"] == "listening")
    host.starts.stop(7, 1, drain_s=600)
    now = time.time()
    for jump_s in (86400, -86400):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: now + jump_s)
        assert host.seen()["alive"]
