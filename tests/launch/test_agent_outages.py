"""An agent that ends, is killed or loses its broker: its servers stay, and it goes on where it was."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings

from tests.launch.agents import AgentProcess
from tests.launch.hosts import stand_in
from tests.launch.simulated import is_up, simulated
from tests.waiting import wait_for


@pytest.fixture
def agent(valkey: "redis.Redis", tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(valkey, tmp_path)
    yield made
    made.end()


def test_the_first_report_describes_the_host(agent: AgentProcess) -> None:
    report = agent.start("--port-range", "21500-21599").reports()[0]
    assert (report["host"], report["address"], report["servers"]) == ("gpu01", "127.0.0.1", [])
    assert list(report["inventory"]["port_range"]) == [21500, 21599]
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1]


def test_an_agent_told_to_end_while_it_starts_gives_its_name_back(agent: AgentProcess, valkey: "redis.Redis") -> None:
    key = f"{settings.REDIS_PREFIX}:agent:gpu01"
    agent.start()
    assert valkey.exists(key)
    assert agent.signal(signal.SIGTERM) == 0
    assert not valkey.exists(key)


def test_servers_outlive_a_killed_agent_and_are_adopted(agent: AgentProcess) -> None:
    spec = simulated()
    agent.start().launch(spec)
    before = agent.wait_for(spec["server_id"], is_up)
    agent.signal(signal.SIGKILL)
    assert agent.server_pids() == [before["pid"]]
    agent.start()
    after = agent.wait_for(spec["server_id"], is_up)
    assert (after["pid"], after["generation"]) == (before["pid"], 1)
    assert agent.server_pids() == [before["pid"]]


def test_a_stop_asked_while_the_agent_was_away_is_done_when_it_returns(agent: AgentProcess) -> None:
    spec = simulated()
    agent.start().launch(spec)
    pid = agent.wait_for(spec["server_id"], is_up)["pid"]
    assert agent.signal(signal.SIGTERM) == 0
    assert agent.server_pids() == [pid]
    agent.ask("agent.stop", spec["server_id"], 1, 5)
    agent.start()
    agent.wait_for(spec["server_id"], lambda server: not server["group_pids"] and server["stop_requested"])


def test_a_missing_vllm_is_said_by_preflight_and_by_the_launch(agent: AgentProcess, tmp_path: Path) -> None:
    agent.start("--vllm", str(tmp_path / "none"))
    spec = simulated(engine="vllm")
    assert {"engine": "failed"}.items() <= {c["code"]: c["result"] for c in agent.preflight(spec)}.items()
    agent.launch(spec)
    cause = agent.wait_for(spec["server_id"], lambda server: server["cause"])["cause"]
    assert cause is not None
    assert cause["code"] == "engine_missing"


def test_the_given_vllm_is_run(agent: AgentProcess, tmp_path: Path) -> None:
    spec = simulated(engine="vllm")
    vllm = stand_in(tmp_path, "print(sys.argv[1:3], flush=True)\ntime.sleep(600)")
    agent.start("--vllm", str(vllm)).launch(spec)
    agent.wait_for(spec["server_id"], lambda server: server["phase"] == "imports")
    assert agent.tail(spec["server_id"], 1, 1000)["text"] == "['serve', 'simulated/model']\n"


def test_it_goes_on_when_the_broker_returns(agent: AgentProcess, valkey: "redis.Redis") -> None:
    spec = simulated()
    agent.start().launch(spec)
    agent.wait_for(spec["server_id"], is_up)
    password = valkey.connection_pool.connection_kwargs["password"]
    valkey.config_set("requirepass", "changed for a while")
    try:
        cut_connections(valkey)
        wait_for(lambda: "does not take reports" in agent.log())
    finally:
        valkey.config_set("requirepass", password)
    agent.next_report()
    agent.ask("agent.stop", spec["server_id"], 1, 0)
    agent.wait_for(spec["server_id"], lambda server: not server["group_pids"])


def cut_connections(valkey: "redis.Redis") -> None:
    """Every one but our own."""
    own = valkey.client_id()
    for connection in valkey.client_list():
        if int(connection["id"]) != own:
            valkey.client_kill_filter(_id=connection["id"])
