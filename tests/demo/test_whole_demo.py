"""`manage.py demo` as a person has it: up in time, whole again after kills, gone without a trace."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.running import START_LIMIT_S, RunningDemo, is_running
from tests.waiting import wait_for

pytestmark = pytest.mark.whole_demo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    demo = RunningDemo(tmp_path_factory.mktemp("demo"), TRAFFIC="0")
    try:
        yield demo.wait_until_ready()
    finally:
        demo.stop()


def server_pids(demo: RunningDemo) -> dict[str, int]:
    """Name to pid of the engine processes, from what the agent keeps on disk."""
    starts = [json.loads(path.read_text()) for path in demo.data_dir.glob("hosts/*/servers/*/*.json")]
    running = [start for start in starts if start["identity"] and is_running(start["identity"]["pid"])]
    return {start["spec"]["name"]: start["identity"]["pid"] for start in running}


def all_ready(demo: RunningDemo) -> bool:
    return [server["state"] for server in demo.servers().values()] == ["ready"] * 4


def kill_child(demo: RunningDemo, name: str) -> None:
    """Returns when the supervisor has started another."""
    pid = wait_for(lambda: demo.child_pid(name), what=f"{name} runs")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: demo.child_pid(name) not in (pid, None), what=f"{name} runs again")


def test_it_says_one_line_with_address_and_login(demo: RunningDemo) -> None:
    ready = [line for line in demo.lines if line.startswith("Switchyard is ready")]
    assert ready == [f"Switchyard is ready: {demo.url}  (login admin / {demo.demo['password']})"]


def test_the_file_holds_what_a_script_needs_and_is_for_its_owner_only(demo: RunningDemo) -> None:
    path = demo.data_dir / "demo.json"
    assert {"url", "username", "password", "api_token", "inference_key", "deployment"} <= demo.demo.keys()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_prefill_and_two_decode_servers_are_ready_on_four_gpus(demo: RunningDemo) -> None:
    servers = list(demo.servers().values())
    assert sorted(server["role"] for server in servers) == ["decode", "decode", "prefill", "prefill"]
    assert {server["state"] for server in servers} == {"ready"}
    assert len(server_pids(demo)) == 4


def test_a_request_is_answered_by_a_prefill_and_a_decode_server(demo: RunningDemo) -> None:
    answer = demo.ask(max_tokens=8)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
    newest = wait_for(lambda: next(iter(demo.get("/api/requests")["items"]), None))
    assert newest["route"] == "split"


def test_nothing_listens_beyond_this_machine(demo: RunningDemo) -> None:
    assert set().union(*map(listening, demo.processes())) == {"127.0.0.1"}


def listening(process: psutil.Process) -> set[str]:
    """Addresses. None of a process that has just ended."""
    with suppress(psutil.NoSuchProcess):
        found = process.net_connections("inet")
        return {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}
    return set()


def test_a_killed_agent_comes_back_and_knows_its_servers(demo: RunningDemo) -> None:
    before = server_pids(demo)
    generations = {name: server["generation"] for name, server in demo.servers().items()}
    kill_child(demo, "agent")
    host = demo.get("/api/hosts")["items"][0]["name"]
    assert host == "this-machine"
    wait_for(lambda: all_ready(demo), what="all servers ready")
    assert server_pids(demo) == before
    assert {name: server["generation"] for name, server in demo.servers().items()} == generations


@pytest.mark.parametrize("name", ["web", "worker", "beat", "valkey"])
def test_a_killed_part_comes_back_while_the_servers_run_on(demo: RunningDemo, name: str) -> None:
    before = server_pids(demo)
    kill_child(demo, name)

    def answers() -> bool:
        try:
            return demo.ask(max_tokens=2).status_code == 200 and all_ready(demo)
        except httpx.HTTPError:
            return False  # the pages are on their way up

    wait_for(answers, "the console answers and all servers are ready")
    assert server_pids(demo) == before


def test_a_second_demo_with_the_same_port_says_so_and_starts_nothing(demo: RunningDemo, tmp_path: Path) -> None:
    second = RunningDemo(tmp_path, port=demo.port)
    assert second.process.wait(START_LIMIT_S) != 0
    second.stop()
    assert f"Cannot listen on 127.0.0.1 port {demo.port}" in second.output
    assert second.processes() == []


def test_a_second_demo_with_the_same_folder_says_so(demo: RunningDemo) -> None:
    second = RunningDemo(demo.data_dir)
    assert second.process.wait(START_LIMIT_S) != 0
    second.stop()
    assert "already runs with the data folder" in second.output
    assert demo.demo == json.loads((demo.data_dir / "demo.json").read_text())


def test_two_demos_run_side_by_side_and_end_without_a_trace(demo: RunningDemo, tmp_path: Path) -> None:
    other = RunningDemo(tmp_path).wait_until_ready()
    try:
        assert other.ask(max_tokens=2).status_code == 200
        assert demo.ask(max_tokens=2).status_code == 200
    finally:
        other.stop()
    assert other.processes() == []
    wait_for(lambda: all_ready(demo), what="all servers ready")


def test_a_killed_demo_is_taken_over_by_the_next_with_its_servers(tmp_path: Path) -> None:
    first = RunningDemo(tmp_path, TRAFFIC="0").wait_until_ready()
    pids = server_pids(first)
    first.kill()
    second = RunningDemo(tmp_path, port=first.port, TRAFFIC="0").wait_until_ready()
    try:
        assert server_pids(second) == pids
        assert second.demo["password"] == first.demo["password"]
        assert second.demo["api_token"] != first.demo["api_token"]
        assert second.ask(max_tokens=2).status_code == 200
    finally:
        second.stop()
    assert second.processes() == []


def test_a_stopped_demo_starts_again_with_what_was_in_it(tmp_path: Path) -> None:
    first = RunningDemo(tmp_path, TRAFFIC="0").wait_until_ready()
    first.stop(signal.SIGINT)  # Ctrl-C
    assert first.process.returncode == 0, first.output
    assert first.processes() == []
    second = RunningDemo(tmp_path, TRAFFIC="0").wait_until_ready()
    try:
        wait_for(lambda: all_ready(second), what="all servers ready")
        assert second.demo["password"] == first.demo["password"]
    finally:
        second.stop()
    assert second.processes() == []
