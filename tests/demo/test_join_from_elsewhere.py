"""The whole way of a machine that has nothing but a join token: a console opened with `up --bind`, a host elsewhere."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from console.demo.servers import LaunchedServers
from tests.launch.networks import SUBNET, FakeHost, network, why_not
from tests.own import free_port
from tests.running import NOT_INHERITED, ROOT, STOP_LIMIT_S
from tests.waiting import wait_for

QUICK = {"SIMULATOR_START_S": "0.5", "SIMULATOR_STOP_S": "0.1", "SIMULATOR_SPEED": "10"}


class OpenConsole:
    """`manage.py up --bind`, with an admin who uses the API, and another machine in its network."""

    def __init__(self, folder: Path, elsewhere: FakeHost) -> None:
        self.folder, self.elsewhere, self.port = folder, elsewhere, free_port()
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self.env = {
            **inherited,
            "DATA_DIR": str(folder / "data"),
            "PORT": str(self.port),
            "AGENT_REPORT_EVERY_S": "0.5",
        }
        self.process = self.run("up", "--bind", f"{SUBNET}.1")
        wait_for(self._is_up, "the console to answer")
        self.manage("createperson", "ada", "--role", "admin", "--password-stdin", stdin="correct horse battery\n")
        self.token = self.manage("maketoken", "ada", "--name", "test", "--scope", "admin").strip()

    @property
    def url(self) -> str:
        return f"http://{SUBNET}.1:{self.port}"

    def run(self, *words: str, inside: FakeHost | None = None, **env: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "manage.py", *words]
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            return subprocess.Popen(
                inside.inside(command) if inside else command,
                cwd=ROOT, env={**self.env, **env}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def manage(self, *words: str, stdin: str = "") -> str:
        command = [sys.executable, "manage.py", *words]
        return subprocess.run(
            command, cwd=ROOT, env=self.env, input=stdin, capture_output=True, text=True, check=True
        ).stdout

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.request(method, f"{self.url}/api{path}", json=body, headers=headers, timeout=120)
        assert answer.status_code < 400, answer.text
        return answer.json()

    def host(self) -> dict[str, Any]:
        """Of gpu01; empty while there is none."""
        hosts = self.call("GET", "/hosts")["items"]
        return next((host for host in hosts if host["name"] == "gpu01"), {})

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_LIMIT_S)

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.log("up")
        return "Switchyard is ready" in self.log("up")


@pytest.fixture
def console(tmp_path: Path) -> Iterator[OpenConsole]:
    if reason := why_not():
        pytest.skip(reason)
    with network(1, tmp_path) as made:
        console = OpenConsole(tmp_path, made.hosts[0])
        try:
            yield console
        finally:
            console.end()


@contextmanager
def agent(console: OpenConsole, state: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """On the other machine, with a data folder and settings of its own."""
    arguments = ["--name", "gpu01", "--simulate-gpus", "2", "--state-dir", str(state), *words]
    process = console.run("agent", *arguments, inside=console.elsewhere, DATA_DIR=str(console.folder / "elsewhere"))
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)


def start_server(console: OpenConsole) -> str:
    """Its address, once it is ready."""
    engine = {"engine": "simulated", "engine_env": QUICK}
    console.call("POST", "/deployments", {"name": "chat", "model": "m", "require_key": False, **engine})
    place = {"deployment": "chat", "host": "gpu01", "role": "plain", "gpu_indexes": [0]}
    server = console.call("POST", "/servers", {**place, "start": True})
    wait_for(lambda: console.call("GET", f"/servers/{server['id']}")["state"] == "ready", "the server")
    return str(console.call("GET", f"/servers/{server['id']}")["url"])


def test_a_machine_elsewhere_joins_serves_outlives_the_broker_and_is_cut_off(console: OpenConsole) -> None:
    token = console.call("POST", "/join-tokens", {"name": "rack 1"})["token"]
    state = console.folder / "state"
    with agent(console, state, "--console", console.url, "--token", token):
        found = wait_for(lambda: console.host().get("reachable") and console.host(), "the host to join")
        assert (found["login"], found["address"], len(found["gpus"])) == ("own", console.elsewhere.address, 2)
        server = start_server(console)
        assert httpx.get(f"{server}/health").status_code == 200

        valkey = json.loads((console.folder / "data" / "run" / "valkey.json").read_text())
        os.kill(valkey["pid"], signal.SIGKILL)
        wait_for(lambda: "does not take reports" in console.log("agent"), "the agent to notice")
        wait_for(lambda: "reports are taken again" in console.log("agent"), "reports to be taken again")

    with agent(console, state):
        # The last report of the agent before may be fresh still: the new one must have said that it is there.
        wait_for(lambda: console.log("agent").count("gpu01 joins") == 2, "the new agent")
        wait_for(lambda: (console.host()["heartbeat_age_s"] or 99) < 2, "a report of it")
        console.call("POST", "/hosts/gpu01/revoke", {"reason": "sold"})
        wait_for(lambda: "refuses the login of this host" in console.log("agent"), "the host to join")
        assert console.host()["login"] == "revoked"
        assert httpx.get(f"{server}/health").status_code == 200
    LaunchedServers(state).end()
