"""Real vLLM with NIXL on this machine's CPU, for all of these tests: a prefill and a decode server, and a plain one.

Three engines are what two cores can carry, and a start takes a minute or more. Files run in the order of their names:
`test_real_vllm` comes last, moves the plain server and ends the others.
"""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running import RunningDemo
from tests.waiting import wait_for

START_LIMIT_S = 600.0
STRUCTURED = '{"backend": "xgrammar", "enable_in_reasoning": true, "disable_any_whitespace": true}'
TOOLS = "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser granite"
ENGINE_ARGS = f"{TOOLS} --structured-outputs-config '{STRUCTURED}'"
"""So that tools, reasoning and structured output can be asked for."""


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    demo = RunningDemo(tmp_path_factory.mktemp("real"), ENGINE="vllm", TRAFFIC="0", ENGINE_ARGS=ENGINE_ARGS)
    try:
        yield demo.wait_until_ready(START_LIMIT_S)
    finally:
        demo.stop()


@pytest.fixture(scope="session")
def plain(demo: RunningDemo) -> str:
    """Name of a plain server of the same deployment, launched from REST."""
    made = demo.post(
        "/api/servers",
        {"deployment": demo.demo["deployment"], "host": "this-machine", "role": "plain", "start": True},
    )
    assert made.status_code == 201, made.text
    name = str(made.json()["name"])
    wait_until_ready(demo, name)
    return name


def wait_until_ready(demo: RunningDemo, name: str) -> dict[str, Any]:
    def is_ready() -> dict[str, Any] | None:
        server = demo.servers()[name]
        assert server["state"] != "failed", server["failure"]
        return server if server["state"] == "ready" and server["move"] is None else None

    return wait_for(is_ready, f"{name} is ready", START_LIMIT_S)


def column(demo: RunningDemo, query: str, *values: str) -> Any:
    """One value from the demo's database."""
    with sqlite3.connect(f"file:{demo.data_dir}/switchyard.sqlite3?mode=ro", uri=True) as database:
        row = database.execute(query, values).fetchone()
    database.close()
    return row[0]


def secret_key(demo: RunningDemo) -> str:
    """What the deployment's servers ask of their callers."""
    return str(column(demo, "select server_api_key from fleet_deployment where name = ?", demo.demo["deployment"]))
