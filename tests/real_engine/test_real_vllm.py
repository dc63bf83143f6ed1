"""Real vLLM with NIXL on this machine's CPU: launched through Celery and the agent, routed and streamed."""

import json
from typing import Any

import httpx
import pytest

from tests.real_engine.yard import Yard, external_tokens
from tests.waiting import wait_for

pytestmark = pytest.mark.real_engine

PROMPT = "The pump in the second tank runs warmer than it did. List what to check first, and say why. " * 12


def streamed_text(demo: Yard, prompt: str) -> tuple[str, httpx.Headers]:
    """The greedy answer of a streamed chat through /v1, and the headers that say where it went."""
    body = {
        "model": demo.demo["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
    }
    key = {"Authorization": f"Bearer {demo.demo['inference_key']}"}
    with httpx.stream("POST", f"{demo.url}/v1/chat/completions", json=body, headers=key, timeout=600) as answer:
        assert answer.status_code == 200, answer.read()
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return text, answer.headers


def newest_route(demo: Yard, request_id: str) -> dict[str, Any]:
    return wait_for(
        lambda: next((row for row in demo.get("/api/requests")["items"] if row["request_id"] == request_id), None),
        what="the request is recorded",
    )


def test_a_real_prefill_and_a_real_decode_server_become_ready(demo: Yard) -> None:
    states = {(server["role"], server["state"]) for server in demo.servers().values()}
    assert states >= {("prefill", "ready"), ("decode", "ready")}
    command = demo.in_role("prefill")["command"]
    assert "vllm serve" in command
    assert "--kv-transfer-config" in command
    assert "kv_producer" in command


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_phases_of_a_real_start_are_recognised(demo: Yard, role: str) -> None:
    server = demo.in_role(role)
    log = demo.get(f"/api/servers/{server['id']}/log", max_bytes=1_000_000)["text"]
    assert "Creating v1 connector" in log
    assert "Initializing NIXL wrapper" in log
    times = demo.observed(server["name"])["phase_times"]
    order = ["spawned", "imports", "model", "weights", "kv_cache", "connector", "nixl", "warmup", "listening"]
    assert list(times) == order
    assert [times[phase] for phase in order] == sorted(times.values())


def test_decode_takes_the_cache_over(demo: Yard) -> None:
    decode = demo.in_role("decode")
    before = external_tokens(decode["url"])
    _, headers = streamed_text(demo, PROMPT)
    assert external_tokens(decode["url"]) - before > 100
    row = newest_route(demo, headers["x-request-id"])
    assert (row["route"], row["outcome"]) == ("split", "ok")
    assert row["completion_tokens"] == 24


def test_split_and_plain_give_the_same_greedy_text(demo: Yard, third: str) -> None:
    prompt = f"Something new, so that no server knows it. {PROMPT}"
    split_text, headers = streamed_text(demo, prompt)
    assert headers["x-switchyard-route"] == "split"

    def answer_of_the_plain_server() -> str | None:
        text, headers = streamed_text(demo, prompt)
        return text if headers["x-switchyard-decode"] == third else None

    with demo.plain_share(100):
        plain_text = wait_for(answer_of_the_plain_server, what="a request goes to the plain server")
    assert len(split_text.split()) > 10
    assert split_text == plain_text
