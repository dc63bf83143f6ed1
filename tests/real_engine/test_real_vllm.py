"""Real vLLM with NIXL on this machine's CPU: launched through Celery and the agent, routed, streamed, moved, ended.

It comes last of the folder's files: it moves the plain server and ends what the others used.
"""

import json
import re
from typing import Any

import httpx
import pytest

from tests.real_engine.conftest import column, wait_until_ready
from tests.running import RunningDemo, is_running
from tests.waiting import wait_for

pytestmark = pytest.mark.real_engine

DRAIN_LIMIT_S = 60.0
EXTERNAL_TOKENS = re.compile(
    r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} (\S+)', re.MULTILINE
)
PROMPT = "The pump in the second tank runs warmer than it did. List what to check first, and say why. " * 12


def in_role(demo: RunningDemo, role: str) -> dict[str, Any]:
    return next(server for server in demo.servers().values() if server["role"] == role)


def observed(demo: RunningDemo, name: str) -> dict[str, Any]:
    """What the agent reported last."""
    seen: dict[str, Any] = json.loads(column(demo, "select observed from fleet_server where name = ?", name))
    return seen


def external_tokens(server: dict[str, Any]) -> float:
    """Prompt tokens whose cache the server took over, by its own count."""
    found = EXTERNAL_TOKENS.search(httpx.get(f"{server['url']}/metrics", timeout=30).text)
    assert found is not None
    return float(found[1])


def streamed_text(demo: RunningDemo, prompt: str) -> tuple[str, httpx.Headers]:
    """The greedy answer of a streamed chat through /v1, and the headers that say where it went."""
    body = {
        "model": demo.demo["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
    }
    key = {"Authorization": f"Bearer {demo.demo['inference_key']}"}
    with httpx.stream("POST", f"{demo.url}/v1/chat/completions", json=body, headers=key, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return text, answer.headers


def send_all_to_plain(demo: RunningDemo, percent: float) -> None:
    changed = httpx.patch(
        f"{demo.url}/api/deployments/{demo.demo['deployment']}",
        json={"plain_share_percent": percent},
        headers={"Authorization": f"Bearer {demo.demo['api_token']}"},
        timeout=30,
    )
    assert changed.status_code == 200, changed.text


def newest_route(demo: RunningDemo, request_id: str) -> dict[str, Any]:
    return wait_for(
        lambda: next((row for row in demo.get("/api/requests")["items"] if row["request_id"] == request_id), None),
        what="the request is recorded",
    )


def test_a_real_prefill_and_a_real_decode_server_become_ready(demo: RunningDemo) -> None:
    found = {(server["role"], server["state"]) for server in demo.servers().values()}
    assert found >= {("prefill", "ready"), ("decode", "ready")}
    command = in_role(demo, "prefill")["command"]
    assert "vllm serve" in command
    assert "--kv-transfer-config" in command
    assert "kv_producer" in command


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_phases_of_a_real_start_are_recognised(demo: RunningDemo, role: str) -> None:
    server = in_role(demo, role)
    log = demo.get(f"/api/servers/{server['id']}/log", max_bytes=1_000_000)["text"]
    assert "Creating v1 connector" in log
    assert "Initializing NIXL wrapper" in log
    times = observed(demo, server["name"])["phase_times"]
    order = ["spawned", "imports", "model", "weights", "kv_cache", "connector", "nixl", "warmup", "listening"]
    assert list(times) == order
    assert [times[phase] for phase in order] == sorted(times.values())


def test_decode_takes_the_cache_over(demo: RunningDemo) -> None:
    decode = in_role(demo, "decode")
    before = external_tokens(decode)
    _, headers = streamed_text(demo, PROMPT)
    assert external_tokens(decode) - before > 100
    row = newest_route(demo, headers["x-request-id"])
    assert (row["route"], row["outcome"]) == ("split", "ok")
    assert row["completion_tokens"] == 24


def test_split_and_plain_give_the_same_greedy_text(demo: RunningDemo, plain: str) -> None:
    prompt = f"Something new, so that no server knows it. {PROMPT}"
    split_text, headers = streamed_text(demo, prompt)
    assert headers["x-switchyard-route"] == "split"

    def answer_of_the_plain_server() -> str | None:
        text, headers = streamed_text(demo, prompt)
        return text if headers["x-switchyard-decode"] == plain else None

    send_all_to_plain(demo, 100)
    try:
        plain_text = wait_for(answer_of_the_plain_server, what="a request goes to the plain server")
    finally:
        send_all_to_plain(demo, 0)
    assert len(split_text.split()) > 10
    assert split_text == plain_text


def test_a_real_server_moves_from_plain_to_decode_and_takes_hand_offs(demo: RunningDemo, plain: str) -> None:
    server = demo.servers()[plain]
    answer = demo.post(f"/api/servers/{server['id']}/move", {"role": "decode", "confirmed": True})
    assert answer.status_code == 202, answer.text
    moved = wait_until_ready(demo, plain)
    assert (moved["role"], moved["generation"]) == ("decode", server["generation"] + 1)
    move = demo.get(f"/api/moves/{answer.json()['id']}")
    assert move["status"] == "done"
    assert "kv_consumer" in moved["command"]
    assert external_tokens(moved) > 0  # the canary through the new pair


def test_stopping_a_real_server_leaves_nothing_of_it(demo: RunningDemo, plain: str) -> None:
    server = demo.servers()[plain]
    group = observed(demo, plain)["group_pids"]
    assert len(group) > 1
    assert demo.post(f"/api/servers/{server['id']}/stop", {}).status_code == 202
    wait_for(lambda: demo.servers()[plain]["state"] == "stopped", f"{plain} is stopped", DRAIN_LIMIT_S)
    assert not any(map(is_running, group))


def test_the_end_of_the_demo_leaves_no_engine_behind(demo: RunningDemo) -> None:
    groups = [pid for name in demo.servers() for pid in observed(demo, name).get("group_pids", [])]
    assert groups
    demo.stop()
    assert demo.processes() == []
    wait_for(lambda: not any(map(is_running, groups)), what="every engine process is gone")
