"""The log of a start, line by line, and how a start fails."""

from __future__ import annotations

import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from console.embedded import free_port
from tests.simulator.harness import MODEL, SimulatedServer
from tests.waiting import wait_until

# Texts in the order of the real log; each is on a line of its own after the one before.
ORDER = [
    "version 0.31.0",
    f"model   {MODEL}",
    "non-default args: {",
    "Resolved architecture: ",
    "Using max model len 8192",
    "NIXL is available",
    "Initializing a V1 LLM engine (v0.31.0) with config: ",
    f"Starting to load model {MODEL}...",
    "Loading safetensors checkpoint shards: 100%",
    "Loading weights took ",
    "GPU KV cache size: 262,144 tokens, Maximum concurrency for 8,192 tokens per request: 32.00x",
    "Creating v1 connector with name: NixlPullConnector and engine_id: ",
    "Initializing NIXL wrapper",
    "Initializing NIXL worker ",
    "Backend UCX was instantiated",
    "Initialized NIXL agent: ",
    "Registering KV_Caches. use_mla: ",
    "init engine (profile, create kv cache, warmup model) took ",
    "Creating v1 connector with name: NixlPullConnector and engine_id: ",
    "Initializing NIXL Scheduler ",
    "Supported tasks: ['generate']",
    "Starting vLLM server on http://127.0.0.1:",
    "Available routes are:",
    "Route: /health, Methods: GET",
    "INFO:     Application startup complete.",
]
PREFIX = re.compile(
    r"^\((APIServer|EngineCore|Worker_TP0) pid=\d+\) (INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] "
)
NIXL_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d NIXL INFO    _api\.py:407 ", re.MULTILINE)


SLOW_START = {"SIMULATOR_START_S": "4"}
"""Time enough to do something to a server that starts."""


def failed(role: Any = "plain", *, code: int, **options: Any) -> str:
    """The log of a start that ends with `code`."""
    server = SimulatedServer(role, wait=False, **options)
    with server:
        assert server.wait_exit() == code, server.log()
        return server.log()


def test_lines_come_in_vllms_order() -> None:
    with SimulatedServer("decode", args=["--max-model-len", "8192"]) as server:
        rest = server.log()
        for text in ORDER:
            _, found, rest = rest.partition(text)
            assert found, f"{text!r} is missing or too early in:\n{server.log()}"


def test_lines_have_process_pid_level_time_and_place() -> None:
    with SimulatedServer("prefill") as server:
        lines = [line for line in server.log().splitlines() if line.startswith("(")]
        assert lines
        assert all(PREFIX.match(line) for line in lines)
        assert NIXL_LINE.search(server.log())


def test_workers_have_lines_of_their_own_with_tensor_parallelism() -> None:
    with SimulatedServer("prefill", args=["--tensor-parallel-size", "2"]) as server:
        assert re.search(r"^\(Worker_TP0 pid=\d+\) INFO .*Initializing NIXL wrapper$", server.log(), re.MULTILINE)


def test_plain_server_says_nothing_of_nixl() -> None:
    with SimulatedServer() as server:
        assert "NIXL" not in server.log()
        assert "Creating v1 connector" not in server.log()


def test_engine_id_is_new_at_every_start_unless_given() -> None:
    def engine_id(**transfer: str) -> str:
        with SimulatedServer("prefill", transfer=transfer) as server:
            match = re.search(r"engine_id: (\S+)", server.log())
            assert match
            return match[1]

    assert engine_id() != engine_id()
    assert engine_id(engine_id="mine") == "mine"


def test_kv_both_works_with_a_warning() -> None:
    with SimulatedServer("prefill", transfer={"kv_role": "kv_both"}) as server:
        assert "WARNING" in server.log()
        assert "deprecated and will be removed in a future release" in server.log()


def test_connection_is_refused_until_the_server_is_ready() -> None:
    with SimulatedServer(env=SLOW_START, wait=False) as server:
        wait_until(lambda: "non-default args" in server.log(), "banner")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        server.wait_ready()


def test_unknown_flag_is_a_usage_error() -> None:
    assert "vllm: error: unrecognized arguments: --no-such-flag" in failed(args=["--no-such-flag"], code=2)


def test_missing_subcommand_is_a_usage_error() -> None:
    assert "vllm: error:" in failed(args=["--port", "none"], code=2)


@pytest.mark.parametrize(
    ("transfer", "words"),
    [
        ({"kv_role": "kv_chef"}, "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'"),
        ({"kv_role": None}, "Please specify kv_role when kv_connector is set, supported roles are ("),
        ({"surprise": 1}, "argument --kv-transfer-config: 1 validation error"),
        ({"kv_load_failure_policy": "hope"}, "1 validation error"),
    ],
)
def test_bad_kv_transfer_config_is_a_usage_error(transfer: dict[str, Any], words: str) -> None:
    assert words in failed("prefill", transfer=transfer, code=2)


def test_kv_transfer_config_that_is_not_json_is_a_usage_error() -> None:
    assert "1 validation error" in failed(args=["--kv-transfer-config", "{nixl}"], code=2)


def test_unknown_connector() -> None:
    assert "Unsupported connector type: Carrier" in failed("prefill", transfer={"kv_connector": "Carrier"}, code=1)


def test_http_port_in_use_names_no_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        log = failed(port=taken.getsockname()[1], code=1)
    assert "OSError: [Errno 98] Address already in use" in log


def test_side_channel_port_in_use_hangs_for_ever_and_loses_sigterm() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with SimulatedServer("prefill", side_port=taken.getsockname()[1], wait=False) as server:
            wait_until(lambda: "zmq.error.ZMQError: Address already in use" in server.log(), "the error")
            server.process.terminate()
            time.sleep(0.3)
            assert server.process.poll() is None
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{server.url}/health")


def test_side_channel_port_that_is_no_number() -> None:
    log = failed("prefill", env={"VLLM_NIXL_SIDE_CHANNEL_PORT": "many"}, code=1)
    assert "ValueError: invalid literal for int()" in log


def test_missing_model_path() -> None:
    log = failed(model="/no/such/model", code=1)
    assert "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/no/such/model'" in log


def test_max_model_len_above_the_models() -> None:
    log = failed(args=["--max-model-len", "999999"], code=1)
    assert "User-specified max_model_len (999999) is greater than the derived max_model_len" in log


def test_kv_cache_too_small_is_first_said_by_the_engine_and_last_by_the_server() -> None:
    log = failed(env={"SIMULATOR_KV_TOKENS": "1000"}, args=["--max-model-len", "4096"], code=1)
    cause = log.index("ValueError: To serve at least one request with the model's max seq len (4096)")
    assert cause < log.index("Engine core initialization failed. See root cause above.")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("nixl missing", "RuntimeError: NIXL is not available"),
        ("not enough memory", "is less than desired GPU memory utilization"),
        ("model not cached", "LocalEntryNotFoundError: "),
        ("port in use", "Address already in use"),
    ],
)
def test_a_start_can_be_told_to_fail(cause: str, words: str) -> None:
    assert words in failed("decode", faults={"fail_start": cause}, code=1)


def test_missing_nixl_warns_first_and_ends_the_start() -> None:
    log = failed("decode", faults={"fail_start": "nixl missing"}, code=1)
    assert log.index("NIXL is not available") < log.index("ERROR") < log.index("Failed core proc(s): {}")


def test_a_start_can_fall_silent_after_a_phase() -> None:
    with SimulatedServer("decode", faults={"silent_after_phase": "weights"}, wait=False) as server:
        wait_until(lambda: "Loading weights took" in server.log(), "weights")
        time.sleep(0.3)
        assert "KV cache size" not in server.log()
        assert server.process.poll() is None


def test_bad_settings_of_the_simulator_are_named() -> None:
    assert "SIMULATOR_SPEED='fast'" in failed(env={"SIMULATOR_SPEED": "fast"}, code=1)
    assert "unknown fault 'sabotage'" in failed(faults={"sabotage": 1}, code=1)


def test_sigterm_during_the_imports_kills_at_once() -> None:
    with SimulatedServer(env={"SIMULATOR_START_S": "30"}, wait=False) as server:
        wait_until(lambda: "simulator" in Path(f"/proc/{server.pid}/cmdline").read_text(), "exec")
        assert server.stop() == -signal.SIGTERM


def test_sigterm_while_starting_is_lost_and_the_server_comes_up() -> None:
    with SimulatedServer(env=SLOW_START, wait=False) as server:
        wait_until(lambda: "non-default args" in server.log(), "banner")
        server.process.terminate()
        server.wait_ready()


def test_sigterm_while_starting_can_hang_the_start() -> None:
    faults = {"sigterm_starting": "hangs"}
    with SimulatedServer(env=SLOW_START, faults=faults, wait=False) as server:
        wait_until(lambda: "non-default args" in server.log(), "banner")
        server.process.terminate()
        time.sleep(float(SLOW_START["SIMULATOR_START_S"]) + 1)
        assert server.process.poll() is None
        assert "startup complete" not in server.log()


def test_sigint_while_starting_ends_it() -> None:
    with SimulatedServer(env={"SIMULATOR_START_S": "20"}, wait=False) as server:
        wait_until(lambda: "non-default args" in server.log(), "banner")
        server.process.send_signal(signal.SIGINT)
        assert server.wait_exit() != 0


def test_a_free_port_is_one_that_nobody_holds() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port()))
        assert holder.getsockname()[1] not in {free_port() for _ in range(100)}
