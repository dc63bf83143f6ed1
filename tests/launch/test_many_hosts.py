"""Three hosts with networks of their own, as namespaces of this machine: split across them, cut one off, heal it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from console.launch import command
from console.launch.contracts import LaunchSpec
from console.launch.metrics import engine_sample
from console.launch.ports import PortBlock
from tests.launch.agents import AgentProcess
from tests.launch.inputs import launch_inputs
from tests.launch.networks import FakeHost, Network, network, why_not
from tests.waiting import wait_for

QUICK = {"SIMULATOR_START_S": "0.1", "SIMULATOR_STOP_S": "0.02", "SIMULATOR_SPEED": "10"}
PROMPT = "How do trains change the track without anybody touching the rails between them? " * 10


@pytest.fixture
def three_hosts(tmp_path: Path) -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    with network(3, tmp_path) as made:
        yield made


@pytest.fixture
def agents(three_hosts: Network, tmp_path: Path) -> Iterator[list[AgentProcess]]:
    """Joined by nothing but a name and the broker's address."""
    with ExitStack() as stack:
        valkey = stack.enter_context(redis.Redis.from_url(three_hosts.broker_url))
        made = []
        for host in three_hosts.hosts:
            folder = tmp_path / host.namespace
            folder.mkdir()
            made.append(AgentProcess(valkey, folder, f"gpu0{host.number}", three_hosts.broker_url, host.inside))
            stack.callback(made[-1].end)
            made[-1].start()
        yield made


def spec_on(host: FakeHost, role: str) -> LaunchSpec:
    return command.build(
        launch_inputs(
            server_id=host.number,
            name=f"chat-{role}",
            generation=1,
            engine="simulated",
            model="simulated/model",
            served_model_name="tiny",
            role=role,
            address=host.address,
            ports=PortBlock(21000),
            gpu_indexes=(0,),
            engine_env=QUICK,
            engine_id=f"engine-{host.number}",
        )
    )


def launch(agent: AgentProcess, host: FakeHost, role: str) -> str:
    """The address of the server, once it is up."""
    agent.launch(spec_on(host, role))
    agent.wait_for(host.number, lambda server: server["healthy"])
    return f"http://{host.address}:21000"


def complete(url: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": PROMPT, "model": "tiny", **body}, timeout=120)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_each_host_reports_the_address_by_which_it_reaches_the_broker(
    three_hosts: Network, agents: list[AgentProcess]
) -> None:
    addresses = [agent.next_report()["address"] for agent in agents]
    assert addresses == [host.address for host in three_hosts.hosts]


def test_kv_is_handed_from_one_host_to_another(three_hosts: Network, agents: list[AgentProcess]) -> None:
    first, second, _ = three_hosts.hosts
    prefill, decode = launch(agents[0], first, "prefill"), launch(agents[1], second, "decode")
    handed = complete(prefill, max_tokens=1, kv_transfer_params={"do_remote_decode": True})["kv_transfer_params"]
    assert handed["remote_host"] == first.address
    complete(decode, max_tokens=4, kv_transfer_params=handed)
    sample = engine_sample(httpx.get(f"{decode}/metrics").text, 0.0)
    assert sample["external_kv_tokens"] > 0
    assert sample["transfer_count"] == 1


def test_a_host_that_is_cut_off_keeps_serving_and_goes_on_when_it_is_back(
    three_hosts: Network, agents: list[AgentProcess]
) -> None:
    lost, agent = three_hosts.hosts[2], agents[2]
    launch(agent, lost, "plain")
    before = agent.next_report()

    lost.cut_off()
    wait_for(lambda: "does not take reports" in agent.log(), "for the agent to notice")
    agent.ask("agent.stop", lost.number, 1, 5)
    assert agent.server_pids() == [before["servers"][0]["pid"]]
    assert agents[0].next_report()["host"] == "gpu01"

    lost.heal()
    after = agent.next_report()
    assert after["agent_started_at"] == before["agent_started_at"]
    wait_for(lambda: is_stopped(agent, lost.number), "for the stop")


def is_stopped(agent: AgentProcess, server_id: int) -> bool:
    """Asks again, as the console does: a broker may lose what it was handing to a host that went away."""
    agent.ask("agent.stop", server_id, 1, 5)
    server = agent.next_report()["servers"][0]
    return server["stop_requested"] and not server["group_pids"]
