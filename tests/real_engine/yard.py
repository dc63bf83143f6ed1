"""A demo of real engines, and what its tests ask of it."""

import json
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import psutil

from tests.mixed_load import MixedLoad
from tests.running import ROOT, RunningDemo, is_running
from tests.waiting import LIMIT_S, wait_for

START_LIMIT_S = 600.0
STOP_LIMIT_S = 300.0
SMALL = ((20, 8), (20, 32), (200, 8))
EXTERNAL_TOKENS = re.compile(
    r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} (\S+)', re.MULTILINE
)
SIDE_CHANNEL = re.compile(r"VLLM_NIXL_SIDE_CHANNEL_PORT=(\d+)")


class Yard(RunningDemo):
    """Three engines with a light load on two cores. Each test takes a server as it finds it and makes it ready."""

    def server(self, name: str) -> dict[str, Any]:
        return self.servers()[name]

    def in_role(self, role: str) -> dict[str, Any]:
        """The first one that was made."""
        return next(server for server in self.servers().values() if server["role"] == role)

    def wait_for_state(self, name: str, state: str, limit_s: float = START_LIMIT_S) -> dict[str, Any]:
        """Without a move under way. Gives up at once when it fails instead."""

        def reached() -> dict[str, Any] | None:
            server = self.server(name)
            assert server["state"] == state or server["state"] != "failed", server["failure"]
            return server if server["state"] == state and server["move"] is None else None

        return wait_for(reached, f"{name} is {state}", limit_s)

    def add_early(self, role: str) -> None:
        """A server more while the demo is about to start its own, so that it starts them all side by side."""
        wait_for(self._has_deployment, "the demo has its deployment", START_LIMIT_S)
        words = [sys.executable, "manage.py", "maketoken", "admin", "--name", "early", "--scope", "operator"]
        made = subprocess.run(words, cwd=ROOT, env=self.env, capture_output=True, text=True, check=True)
        token = {"Authorization": f"Bearer {made.stdout.strip()}"}
        body = {"deployment": "demo-vllm", "host": "this-machine", "role": role}
        answer = httpx.post(f"{self.url}/api/servers", json=body, headers=token, timeout=LIMIT_S)
        assert answer.status_code == 201, answer.text

    def _has_deployment(self) -> bool:
        assert self.process.poll() is None, self.output
        try:
            return bool(self._column("select count(*) from fleet_deployment where name = ?", "demo-vllm"))
        except sqlite3.OperationalError:
            return False

    def start(self, name: str) -> None:
        answer = self.post(f"/api/servers/{self.server(name)['id']}/start", {})
        assert answer.status_code == 202, answer.text

    def stop_server(self, name: str) -> None:
        answer = self.post(f"/api/servers/{self.server(name)['id']}/stop", {})
        assert answer.status_code == 202, answer.text
        self.wait_for_state(name, "stopped", STOP_LIMIT_S)

    def make_ready(self, name: str) -> dict[str, Any]:
        if self.server(name)["state"] in ("stopped", "failed"):
            self.start(name)
        return self.wait_for_state(name, "ready")

    def move(self, name: str, role: str) -> dict[str, Any]:
        """Asks for it and returns it as it begins."""
        body = {"role": role, "confirmed": True}
        answer = self.post(f"/api/servers/{self.server(name)['id']}/move", body)
        assert answer.status_code == 202, answer.text
        begun: dict[str, Any] = answer.json()
        return begun

    def end_of(self, move: dict[str, Any]) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            fresh: dict[str, Any] = self.get(f"/api/moves/{move['id']}")
            return fresh if fresh["status"] in ("done", "failed", "cancelled") else None

        return wait_for(ended, "the move ends", START_LIMIT_S)

    def observed(self, name: str) -> dict[str, Any]:
        """What the agent reported last."""
        seen: dict[str, Any] = json.loads(self._column("select observed from fleet_server where name = ?", name))
        return seen

    def secret_key(self) -> str:
        """What the deployment's servers ask of their callers."""
        query = "select server_api_key from fleet_deployment where name = ?"
        return str(self._column(query, self.demo["deployment"]))

    def _column(self, query: str, value: str) -> Any:
        """One value from the demo's database."""
        with closing(
            sqlite3.connect(f"file:{self.data_dir}/switchyard.sqlite3?mode=ro", uri=True, timeout=LIMIT_S)
        ) as database:
            return database.execute(query, [value]).fetchone()[0]

    def engine_core(self, name: str) -> psutil.Process:
        processes = [psutil.Process(pid) for pid in self.observed(name)["group_pids"]]
        return next(process for process in processes if process.name().startswith("VLLM::EngineCor"))

    def load(self) -> MixedLoad:
        return MixedLoad(self.url, self.demo["model"], self.demo["inference_key"], SMALL, clients=2, rest_s=2.0)

    @contextmanager
    def plain_share(self, percent: float) -> Iterator[None]:
        """So much of the traffic goes to plain servers until the block ends."""
        self._change_deployment(plain_share_percent=percent)
        try:
            yield
        finally:
            self._change_deployment(plain_share_percent=0)

    def _change_deployment(self, **changes: Any) -> None:
        address = f"{self.url}/api/deployments/{self.demo['deployment']}"
        answer = httpx.patch(address, json=changes, headers=self.token(), timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text


def external_tokens(url: str) -> float:
    """Prompt tokens whose cache the server at `url` took over, by its own count."""
    found = EXTERNAL_TOKENS.search(httpx.get(f"{url}/metrics", timeout=LIMIT_S).text)
    assert found is not None
    return float(found[1])


def ports_of(server: dict[str, Any]) -> tuple[int, int]:
    """Of its API and of its side channel."""
    found = SIDE_CHANNEL.search(server["command"])
    assert found is not None, server["command"]
    return int(httpx.URL(server["url"]).port or 0), int(found[1])


@contextmanager
def taken(port: int) -> Iterator[None]:
    """A stranger listens there until the block ends."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(map(is_running, pids)), f"every process of {pids} is gone", STOP_LIMIT_S)
