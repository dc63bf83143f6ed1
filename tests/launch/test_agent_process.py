"""A real agent on a real broker: what it is asked by tasks it does, and what it sees it reports."""

import os
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
import redis
from django.conf import settings

from console.launch import process
from console.launch.contracts import PHASES, LaunchSpec, ServerObservation
from tests.launch.agents import AgentProcess
from tests.launch.simulated import QUICK, is_up, simulated


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """One for all tests here: each has a server of its own."""
    with redis.Redis.from_url(settings.REDIS_URL) as valkey:
        made = AgentProcess(valkey, tmp_path_factory.mktemp("agent"))
        try:
            yield made.start()
        finally:
            made.end()


def launch(agent: AgentProcess, spec: LaunchSpec) -> ServerObservation:
    """As it is seen when it is up."""
    agent.launch(spec)
    return agent.wait_for(spec["server_id"], is_up)


def test_reports_are_numbered_and_go_on(agent: AgentProcess) -> None:
    assert agent.next_report()["seq"] < agent.next_report()["seq"]


def test_a_simulated_server_goes_through_its_phases_and_serves(agent: AgentProcess) -> None:
    spec = simulated()
    server = launch(agent, spec)
    assert (server["phase"], server["cause"], server["engine_id"]) == ("listening", None, "engine-of-this-start")
    assert list(server["phase_times"]) == list(PHASES)
    assert server["version"]
    assert server["kv_cache_tokens"]
    assert httpx.get(f"http://127.0.0.1:{spec['api_port']}/health").status_code == 200


def test_its_metrics_and_its_gpu_are_reported(agent: AgentProcess) -> None:
    spec = simulated(gpu_indexes=(1,))
    launch(agent, spec)
    server = agent.wait_for(spec["server_id"], lambda server: server["sample"])
    assert server["sample"] is not None
    assert server["sample"]["running"] == 0
    [first, second] = agent.next_report()["gpus"]
    assert spec["name"] not in [holder["name"] for holder in first["holders"]]
    assert spec["name"] in [holder["name"] for holder in second["holders"]]


def test_a_second_delivery_starts_nothing(agent: AgentProcess) -> None:
    spec = simulated()
    for _ in range(5):
        agent.launch(spec)
    pid = launch(agent, spec)["pid"]
    assert agent.server_pids(spec["server_id"]) == [pid]


def test_two_deliveries_at_once_start_one_process(agent: AgentProcess) -> None:
    spec = simulated()
    threads = [threading.Thread(target=agent.launch, args=[spec]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pid = launch(agent, spec)["pid"]
    assert agent.server_pids(spec["server_id"]) == [pid]


def test_eight_launches_in_progress_do_not_hold_up_a_stop(agent: AgentProcess) -> None:
    slow = [simulated(engine_env={**QUICK, "SIMULATOR_START_S": "600"}) for _ in range(8)]
    for spec in slow:
        agent.launch(spec)
    first, *others = [spec["server_id"] for spec in slow]
    agent.ask("agent.stop", first, 1, 0)
    agent.wait_for(first, lambda server: server["stop_requested"])
    assert not any(is_up(server) for server in agent.reports()[0]["servers"] if server["server_id"] in others)


def test_stopping_ends_the_server_with_exit_code_0(agent: AgentProcess) -> None:
    spec = simulated()
    launch(agent, spec)
    agent.ask("agent.stop", spec["server_id"], 1, 5)
    server = agent.wait_for(spec["server_id"], lambda server: not server["group_pids"])
    assert (server["exit_code"], server["stop_requested"], server["cause"]) == (0, True, None)


def test_a_server_killed_from_outside_is_noticed(agent: AgentProcess) -> None:
    spec = simulated()
    pid = launch(agent, spec)["pid"]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    server = agent.wait_for(spec["server_id"], lambda server: not server["alive"])
    assert server["cause"] is not None
    assert (server["exit_code"], server["cause"]["code"]) == (-9, "killed")


def test_a_server_gets_its_key_by_environment_and_not_the_brokers_address(agent: AgentProcess) -> None:
    pid = launch(agent, simulated(api_key="sk-very-secret"))["pid"]
    seen = (process.PROC / str(pid) / "environ").read_bytes()
    assert settings.REDIS_URL.encode() not in seen
    assert b"sk-very-secret" in seen
    assert b"sk-very-secret" not in (process.PROC / str(pid) / "cmdline").read_bytes()
    assert "sk-very-secret" not in str(agent.reports())


def test_the_end_of_the_log_can_be_read(agent: AgentProcess) -> None:
    spec = simulated()
    launch(agent, spec)
    found = agent.tail(spec["server_id"], 1, 2000)
    assert "Application startup complete" in found["text"]
    assert len(found["text"]) <= 2000 < found["size_bytes"]
    assert found["truncated"]


def test_the_log_of_an_unknown_start_is_empty(agent: AgentProcess) -> None:
    assert agent.tail(99_999, 1, 2000)["text"] == ""


def test_preflight_is_answered(agent: AgentProcess) -> None:
    checks = agent.preflight(simulated(gpu_indexes=()))
    assert {check["code"]: check["result"] for check in checks} == {
        "engine": "ok",
        "model": "ok",
        "ports": "ok",
        "address": "warning",
        "gpus": "ok",
        "leftovers": "ok",
        "disk": "ok",
    }
