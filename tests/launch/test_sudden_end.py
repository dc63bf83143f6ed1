"""A server that ends though nobody asked: what is said of it, and what it leaves behind."""

import os
import signal

import pytest

from console.launch.contracts import ServerObservation
from tests.launch.conftest import MakeHost
from tests.launch.hosts import TestHost

WITH_A_WORKER = "subprocess.Popen(['sleep', '600'])\ntime.sleep(600)"


def code(seen: ServerObservation) -> str:
    return seen["cause"]["code"] if seen["cause"] else ""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("sys.exit(3)", "exited"),
        ("sys.exit(0)", "engine_died"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "killed"),
    ],
)
def test_the_way_it_ended_is_the_cause_when_the_log_says_nothing(
    make_host: MakeHost, script: str, expected: str
) -> None:
    host = make_host(script)
    host.launch()
    seen = host.wait(lambda seen: not seen["alive"])
    assert code(seen) == expected
    assert not seen["stop_requested"]


def test_exit_code_0_of_a_listening_server_is_a_failure_as_well(make_host: MakeHost) -> None:
    host = make_host("print('INFO:     Application startup complete.', flush=True)")
    host.launch()
    seen = host.wait(lambda seen: not seen["alive"])
    assert (seen["exit_code"], seen["phase"], code(seen)) == (0, "listening", "engine_died")


def test_the_earliest_known_cause_wins_over_what_followed_it(make_host: MakeHost) -> None:
    host = make_host(
        "print('(Worker pid=3) ERROR 11-29 14:50:06 [w.py:1] RuntimeError: NIXL is not available')\n"
        "print('(EngineCore pid=2) ERROR 11-29 14:50:07 [c.py:1] torch.OutOfMemoryError: CUDA out of memory')\n"
        "print('RuntimeError: Engine core initialization failed. See root cause above.')\n"
        "sys.exit(1)"
    )
    host.launch()
    seen = host.wait(lambda seen: not seen["alive"])
    assert code(seen) == "nixl_missing"
    assert seen["cause"] is not None
    assert seen["cause"]["line"] == "RuntimeError: NIXL is not available"


def test_the_first_error_of_the_engine_is_kept_as_evidence_of_an_unknown_cause(make_host: MakeHost) -> None:
    host = make_host(
        "print('(EngineCore pid=2) ERROR 11-29 14:50:07 [core.py:1] something new')\n"
        "print('(APIServer pid=1) ERROR 11-29 14:50:07 [api.py:1] Engine core initialization failed')\n"
        "sys.exit(1)"
    )
    host.launch()
    seen = host.wait(lambda seen: not seen["alive"])
    assert seen["cause"] is not None
    assert (code(seen), seen["cause"]["line"]) == ("exited", "something new")


def test_a_last_line_without_an_end_is_read_as_well(make_host: MakeHost) -> None:
    host = make_host("print('vllm: error: unrecognized arguments: --foo', end='')\nsys.exit(2)")
    host.launch()
    assert code(host.wait(lambda seen: not seen["alive"])) == "bad_argument"


def test_a_prompt_in_the_log_does_not_pass_for_a_cause(make_host: MakeHost) -> None:
    host = make_host(
        "print('(APIServer pid=1) INFO 11-29 14:50:06 [log.py:1] prompt: OSError: [Errno 98] Address already in use')\n"
        "sys.exit(1)"
    )
    host.launch()
    assert code(host.wait(lambda seen: not seen["alive"])) == "exited"


def test_workers_of_a_killed_main_process_are_reported_and_left_to_the_operator(make_host: MakeHost) -> None:
    host = make_host(WITH_A_WORKER)
    host.launch()
    pid = host.wait(lambda seen: len(seen["group_pids"]) == 2)["pid"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    seen = host.wait(lambda seen: not seen["alive"])
    assert (len(seen["group_pids"]), code(seen)) == (1, "killed")


def test_no_new_start_while_workers_of_an_earlier_one_live(make_host: MakeHost) -> None:
    host = make_host(WITH_A_WORKER)
    kill_main_process(host)
    host.launch(generation=2)
    seen = host.wait(lambda seen: seen["generation"] == 2)
    assert (seen["pid"], code(seen)) == (None, "orphans_left")


def test_stopping_clears_the_workers_and_then_it_starts_again(make_host: MakeHost) -> None:
    host = make_host(WITH_A_WORKER)
    kill_main_process(host)
    host.starts.stop(7, 1, drain_s=600)
    host.wait(lambda seen: not seen["group_pids"])
    host.launch(generation=2)
    assert host.wait(lambda seen: seen["generation"] == 2)["alive"]


def test_a_start_whose_side_channel_is_taken_is_ended_instead_of_hanging(make_host: MakeHost) -> None:
    host = make_host(
        "print('Exception in thread nixl_handshake_listener:')\n"
        "print(\"zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5600')\", flush=True)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(600)"
    )
    host.launch()
    seen = host.wait(lambda seen: not seen["group_pids"] and seen["pid"])
    assert (code(seen), seen["stop_requested"]) == ("side_channel_in_use", False)
    assert seen["cause"] is not None
    assert "tcp://127.0.0.1:5600" in seen["cause"]["message"]


def kill_main_process(host: TestHost) -> None:
    host.launch()
    pid = host.wait(lambda seen: len(seen["group_pids"]) == 2)["pid"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    host.wait(lambda seen: not seen["alive"])
