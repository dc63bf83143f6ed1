"""A real agent on a real broker: what it is asked by tasks it does, and what it sees it reports."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from console.launch import command, process
from console.launch.contracts import PHASES, LaunchSpec
from tests.launch.agents import AgentProcess
from tests.launch.hosts import free_ports, stand_in, wait_until
from tests.launch.inputs import launch_inputs

QUICK = {"SIMULATOR_START_S": "0.3", "SIMULATOR_STOP_S": "0.02", "SIMULATOR_SPEED": "10"}


@pytest.fixture
def agent(valkey: "redis.Redis", tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(valkey, tmp_path)
    yield made
    made.end()


def simulated(server_id: int = 7, generation: int = 1, **fields: Any) -> LaunchSpec:
    defaults: dict[str, Any] = {
        "engine": "simulated",
        "model": "simulated/model",
        "address": "127.0.0.1",
        "ports": free_ports(),
        "role": "prefill",
        "gpu_indexes": (0,),
        "engine_env": QUICK,
        "engine_id": "engine-of-this-start",
    }
    return command.build(launch_inputs(server_id=server_id, generation=generation, **{**defaults, **fields}))


def is_up(server: Any) -> bool:
    return bool(server["healthy"])


def test_the_first_report_describes_the_host(agent: AgentProcess) -> None:
    report = agent.start("--port-range", "21500-21599").reports()[0]
    assert (report["host"], report["address"], report["servers"]) == ("gpu01", "127.0.0.1", [])
    assert list(report["inventory"]["port_range"]) == [21500, 21599]
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1]


def test_reports_are_numbered_and_go_on(agent: AgentProcess) -> None:
    agent.start()
    assert agent.next_report()["seq"] < agent.next_report()["seq"]


def test_a_simulated_server_goes_through_its_phases_and_serves(agent: AgentProcess) -> None:
    spec = simulated()
    agent.start().launch(spec)
    server = agent.wait_for(7, is_up)
    assert (server["phase"], server["cause"], server["engine_id"]) == ("listening", None, "engine-of-this-start")
    assert list(server["phase_times"]) == list(PHASES)
    assert server["version"]
    assert server["kv_cache_tokens"]
    assert httpx.get(f"http://127.0.0.1:{spec['api_port']}/health").status_code == 200


def test_its_metrics_and_its_gpu_are_reported(agent: AgentProcess) -> None:
    agent.start().launch(simulated())
    server = agent.wait_for(7, lambda server: server["sample"])
    assert server["sample"] is not None
    assert server["sample"]["running"] == 0
    gpus = agent.next_report()["gpus"]
    assert [[holder["name"] for holder in gpu["holders"]] for gpu in gpus] == [["chat-prefill-1"], []]


def test_a_second_delivery_starts_nothing(agent: AgentProcess) -> None:
    spec = simulated()
    agent.start()
    for _ in range(5):
        agent.launch(spec)
    pid = agent.wait_for(7, is_up)["pid"]
    assert agent.server_pids() == [pid]


def test_eight_launches_do_not_hold_up_a_stop(agent: AgentProcess) -> None:
    agent.start()
    ports = free_ports(data_parallel=80)
    for number in range(8):
        block = type(ports)(ports.api + number * 8)
        slow = {**QUICK, "SIMULATOR_START_S": "30"}
        agent.launch(simulated(number + 1, ports=block, engine_env=slow, name=f"s{number}"))
    agent.ask("agent.stop", 1, 1, 0)
    agent.wait_for(1, lambda server: server["stop_requested"])


def test_stopping_ends_the_server_with_exit_code_0(agent: AgentProcess) -> None:
    agent.start().launch(simulated())
    agent.wait_for(7, is_up)
    agent.ask("agent.stop", 7, 1, 5)
    server = agent.wait_for(7, lambda server: not server["group_pids"])
    assert (server["exit_code"], server["stop_requested"], server["cause"]) == (0, True, None)


def test_a_server_killed_from_outside_is_noticed(agent: AgentProcess) -> None:
    agent.start().launch(simulated())
    pid = agent.wait_for(7, is_up)["pid"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    server = agent.wait_for(7, lambda server: not server["alive"])
    assert server["cause"] is not None
    assert (server["exit_code"], server["cause"]["code"]) == (-9, "killed")


def test_servers_outlive_a_killed_agent_and_are_adopted(agent: AgentProcess) -> None:
    agent.start().launch(simulated())
    before = agent.wait_for(7, is_up)
    agent.signal(signal.SIGKILL)
    assert agent.server_pids() == [before["pid"]]
    agent.start()
    after = agent.wait_for(7, is_up)
    assert (after["pid"], after["generation"]) == (before["pid"], 1)
    assert agent.server_pids() == [before["pid"]]


def test_an_agent_that_is_told_to_end_leaves_its_servers(agent: AgentProcess) -> None:
    agent.start().launch(simulated())
    pid = agent.wait_for(7, is_up)["pid"]
    assert agent.signal(signal.SIGTERM) == 0
    assert agent.server_pids() == [pid]


def test_a_stop_asked_while_the_agent_was_away_is_done_when_it_returns(agent: AgentProcess) -> None:
    agent.start().launch(simulated())
    agent.wait_for(7, is_up)
    agent.signal(signal.SIGTERM)
    agent.ask("agent.stop", 7, 1, 5)
    agent.start()
    agent.wait_for(7, lambda server: not server["group_pids"] and server["stop_requested"])


def test_a_server_does_not_get_the_brokers_address(agent: AgentProcess, valkey: "redis.Redis") -> None:
    agent.start().launch(simulated(api_key="sk-very-secret"))
    pid = agent.wait_for(7, lambda server: server["alive"])["pid"]
    seen = (process.PROC / str(pid) / "environ").read_bytes()
    password = valkey.connection_pool.connection_kwargs["password"].encode()
    assert password not in seen
    assert b"sk-very-secret" in seen
    assert b"sk-very-secret" not in (process.PROC / str(pid) / "cmdline").read_bytes()


def test_reports_do_not_hold_secrets(agent: AgentProcess, valkey: "redis.Redis") -> None:
    agent.start().launch(simulated(api_key="sk-very-secret"))
    agent.wait_for(7, is_up)
    assert "sk-very-secret" not in str(agent.reports())


def test_the_end_of_the_log_can_be_read(agent: AgentProcess) -> None:
    agent.start().launch(simulated())
    agent.wait_for(7, is_up)
    found = agent.tail(7, 1, 2000)
    assert "Application startup complete" in found["text"]
    assert len(found["text"]) <= 2000 < found["size_bytes"]
    assert found["truncated"]


def test_the_log_of_an_unknown_start_is_empty(agent: AgentProcess) -> None:
    assert agent.start().tail(99, 1, 2000)["text"] == ""


def test_preflight_is_answered(agent: AgentProcess) -> None:
    checks = agent.start().preflight(simulated())
    assert {check["code"]: check["result"] for check in checks} == {
        "engine": "ok",
        "model": "ok",
        "ports": "ok",
        "address": "warning",
        "gpus": "ok",
        "leftovers": "ok",
        "disk": "ok",
    }


def test_a_missing_vllm_is_said_by_preflight_and_by_the_launch(agent: AgentProcess, tmp_path: Path) -> None:
    agent.start("--vllm", str(tmp_path / "none"))
    spec = simulated(engine="vllm")
    assert {"engine": "failed"}.items() <= {c["code"]: c["result"] for c in agent.preflight(spec)}.items()
    agent.launch(spec)
    cause = agent.wait_for(7, lambda server: server["cause"])["cause"]
    assert cause is not None
    assert cause["code"] == "engine_missing"


def test_the_given_vllm_is_run(agent: AgentProcess, tmp_path: Path) -> None:
    vllm = stand_in(tmp_path, "print(sys.argv[1:3], flush=True)\ntime.sleep(600)")
    agent.start("--vllm", str(vllm)).launch(simulated(engine="vllm"))
    agent.wait_for(7, lambda server: server["phase"] == "imports")
    assert agent.tail(7, 1, 1000)["text"] == "['serve', 'simulated/model']\n"


def test_it_goes_on_when_the_broker_returns(agent: AgentProcess, valkey: "redis.Redis") -> None:
    agent.start().launch(simulated())
    agent.wait_for(7, is_up)
    password = valkey.connection_pool.connection_kwargs["password"]
    valkey.config_set("requirepass", "changed for a while")
    try:
        cut_connections(valkey)
        wait_until(lambda: "does not take reports" in agent.log())
    finally:
        valkey.config_set("requirepass", password)
    agent.next_report()
    agent.ask("agent.stop", 7, 1, 0)
    agent.wait_for(7, lambda server: not server["group_pids"])


def cut_connections(valkey: "redis.Redis") -> None:
    """Every one but our own."""
    own = valkey.client_id()
    for connection in valkey.client_list():
        if int(connection["id"]) != own:
            valkey.client_kill_filter(_id=connection["id"])


def test_two_deliveries_at_once_start_one_process(agent: AgentProcess) -> None:
    spec = simulated()
    agent.start()
    threads = [threading.Thread(target=agent.launch, args=[spec]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pid = agent.wait_for(7, is_up)["pid"]
    assert agent.server_pids() == [pid]
