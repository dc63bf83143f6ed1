"""Each fault switch does what it says."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from console.simulator.faults import BadFaults, Faults
from tests.simulator.harness import SimulatedServer
from tests.waiting import wait_until

COMPLETION: dict[str, Any] = {"prompt": "x", "max_tokens": 4}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def shared() -> Iterator[SimulatedServer]:
    with SimulatedServer() as server:
        yield server


@pytest.fixture
def server(shared: SimulatedServer) -> Iterator[SimulatedServer]:
    yield shared
    shared.clear_faults()
    shared.forget_requests()


def complete(server: SimulatedServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json={**COMPLETION, **body})


def stream(server: SimulatedServer, **body: Any) -> list[str]:
    """The lines of a streamed completion."""
    return [line for line in complete(server, stream=True, **body).text.splitlines() if line]


def chat_stream(server: SimulatedServer) -> list[Any]:
    text = httpx.post(f"{server.url}/v1/chat/completions", json={**CHAT, "stream": True}).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def read_until_error(server: SimulatedServer) -> tuple[str, httpx.TransportError | None]:
    """What arrived of a stream, and what ended it."""
    received = ""
    body = {**COMPLETION, "stream": True}
    try:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            for part in response.iter_text():
                received += part
    except httpx.TransportError as error:
        return received, error
    return received, None


def test_faults_merge_show_and_clear(server: SimulatedServer) -> None:
    server.faults(chunk_delay_s=0.1)
    assert server.faults(cached_tokens=5) == {"chunk_delay_s": 0.1, "cached_tokens": 5}
    assert server.faults(chunk_delay_s=None) == {"cached_tokens": 5}
    server.clear_faults()
    assert httpx.get(f"{server.url}/simulator/faults").json() == {}


def test_unknown_and_ill_typed_faults_are_refused(server: SimulatedServer) -> None:
    response = httpx.post(f"{server.url}/simulator/faults", json={"sabotage": 1})
    assert response.status_code == 400
    for changes in ({"times": "many"}, {"gzip": "brotli"}, {"chunk_delay_s": True}):
        with pytest.raises(BadFaults):
            Faults().merged(changes)


def test_faults_can_last_for_some_requests_only(server: SimulatedServer) -> None:
    server.faults(answer={"status": 500, "body": {"error": "no"}}, times=2)
    assert [complete(server).status_code for _ in range(3)] == [500, 500, 200]


def test_answer_is_given_with_its_status_body_and_headers(server: SimulatedServer) -> None:
    server.faults(answer={"status": 429, "body": {"error": {"message": "busy"}}, "headers": {"retry-after": "7"}})
    response = complete(server)
    assert (response.status_code, response.json()) == (429, {"error": {"message": "busy"}})
    assert response.headers["retry-after"] == "7"


def test_header_delay(server: SimulatedServer) -> None:
    server.faults(header_delay_s=0.3)
    began = time.monotonic()
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**COMPLETION, "stream": True}):
        assert time.monotonic() - began >= 0.3


def test_first_chunk_delay_comes_after_the_headers(server: SimulatedServer) -> None:
    server.faults(first_chunk_delay_s=600)
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**COMPLETION, "stream": True}) as response:
        assert response.status_code == 200
    server.faults(first_chunk_delay_s=0.3)
    began = time.monotonic()
    assert stream(server)[-1] == "data: [DONE]"
    assert time.monotonic() - began >= 0.3


def test_chunk_delay_is_between_chunks(server: SimulatedServer) -> None:
    server.faults(chunk_delay_s=0.1)
    began = time.monotonic()
    assert len(stream(server)) == 5
    assert time.monotonic() - began >= 0.4


def test_tokens_per_chunk(server: SimulatedServer) -> None:
    server.faults(tokens_per_chunk=3)
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in stream(server, max_tokens=7)[:-1]]
    assert [len(text) for text in texts] == [12, 12, 4]


def test_role_comes_long_before_the_content(server: SimulatedServer) -> None:
    server.faults(role_first_s=600)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        assert '"role":"assistant"' in next(response.iter_text())
    server.faults(role_first_s=0.3)
    began = time.monotonic()
    assert len(chat_stream(server)) == 5
    assert time.monotonic() - began >= 0.3


def test_never_answering_is_seen_as_a_client_that_left(server: SimulatedServer) -> None:
    server.faults(never_answer=True)
    with server.asked("/v1/completions", COMPLETION) as client:
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
    wait_until(lambda: server.requests("/v1/completions")[-1]["disconnected"], "disconnect seen")


def test_stall_keeps_the_connection_open(server: SimulatedServer) -> None:
    server.faults(stall_after_chunks=2)
    received = b""
    with server.asked("/v1/completions", {**COMPLETION, "stream": True}) as client:
        while received.count(b"data: {") < 2:
            received += client.recv(1 << 16) or pytest.fail(f"it was closed after {received!r}")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert received.count(b"data: {") == 2


def test_stop_reading_leaves_a_large_body_unread(server: SimulatedServer) -> None:
    server.faults(stop_reading=True)
    with pytest.raises((httpx.WriteTimeout, httpx.ReadTimeout)):
        httpx.post(f"{server.url}/v1/completions", content=b"x" * 50_000_000, timeout=0.5)


@pytest.mark.parametrize("chunks", [0, 2])
def test_reset_after_chunks(server: SimulatedServer, chunks: int) -> None:
    server.faults(reset_after_chunks=chunks)
    received, error = read_until_error(server)
    assert received.count("data: {") == chunks
    assert isinstance(error, httpx.ReadError | httpx.RemoteProtocolError)


def test_reset_is_a_reset_and_not_an_orderly_end(server: SimulatedServer) -> None:
    server.faults(reset_after_chunks=0)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        body = json.dumps(COMPLETION).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        sock.sendall(head.encode() + b"\r\n\r\n" + body)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_done_without_a_finish_reason(server: SimulatedServer) -> None:
    server.faults(done_after_chunks=1)
    lines = stream(server)
    assert lines[-1] == "data: [DONE]"
    assert "length" not in "".join(lines)


def test_error_event_in_the_middle(server: SimulatedServer) -> None:
    server.faults(error_after_chunks=1)
    lines = stream(server)
    assert json.loads(lines[-2][6:])["error"]["code"] == 500
    assert lines[-1] == "data: [DONE]"


def test_split_writes_arrive_whole(server: SimulatedServer) -> None:
    whole = complete(server).json()["choices"]
    server.faults(split_writes=1)
    assert complete(server).json()["choices"] == whole
    assert stream(server)[-1] == "data: [DONE]"


@pytest.mark.parametrize(("setting", "accepts", "compressed"), [
    ("accepted", "gzip", True), ("accepted", "identity", False), ("always", "identity", True),
])  # fmt: skip
def test_gzip(server: SimulatedServer, setting: str, accepts: str, compressed: bool) -> None:
    server.faults(gzip=setting)
    for body in (COMPLETION, {**COMPLETION, "stream": True}):
        response = httpx.post(f"{server.url}/v1/completions", json=body, headers={"Accept-Encoding": accepts})
        assert ("gzip" in response.headers.get("content-encoding", "")) == compressed
        assert "length" in response.text


def test_comment_lines_come_before_each_chunk(server: SimulatedServer) -> None:
    server.faults(comment_lines=2)
    lines = stream(server)
    assert lines.count(": comment") == 2 * len([line for line in lines if line.startswith("data: ")])


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_comes_before_the_content(server: SimulatedServer, field: str) -> None:
    server.faults(reasoning_tokens=2, reasoning_field=field)
    deltas = [chunk["choices"][0]["delta"] for chunk in chat_stream(server)[1:]]
    assert [field in delta for delta in deltas] == [True, True, False, False]
    message = httpx.post(f"{server.url}/v1/chat/completions", json=CHAT).json()["choices"][0]["message"]
    assert (len(message[field]), len(message["content"])) == (8, 8)


def test_tool_call_of_a_size(server: SimulatedServer) -> None:
    server.faults(tool_call_bytes=20_000)
    calls = [call for chunk in chat_stream(server) for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    arguments = "".join(call["function"].get("arguments", "") for call in calls)
    assert len(arguments) == 20_000
    assert json.loads(arguments)


def test_unknown_keys_in_chunks_and_deltas(server: SimulatedServer) -> None:
    server.faults(extra={"new_key": 1}, delta_extra={"odd": [1]})
    chunks = chat_stream(server)
    assert all(chunk["new_key"] == 1 for chunk in chunks)
    assert chunks[1]["choices"][0]["delta"]["odd"] == [1]
    assert complete(server).json()["new_key"] == 1


def test_usage_and_cached_tokens_can_be_prescribed(server: SimulatedServer) -> None:
    server.faults(usage={"prompt_tokens": 128}, cached_tokens=64)
    usage = complete(server).json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (128, 64)


def test_fields_can_be_refused(server: SimulatedServer) -> None:
    server.faults(refuse_fields=["logit_bias"])
    assert complete(server, logit_bias={}).status_code == 400
    assert complete(server).status_code == 200


def test_bearer_key_can_be_required_on_every_path(server: SimulatedServer) -> None:
    server.faults(api_key="k")
    for path in ("/health", "/metrics", "/v1/models"):
        assert httpx.get(f"{server.url}{path}").status_code == 401
        assert httpx.get(f"{server.url}{path}", headers={"Authorization": "Bearer k"}).status_code == 200


@pytest.mark.parametrize(("fault", "path"), [
    ("health", "/health"), ("models", "/v1/models"), ("metrics", "/metrics"),
])  # fmt: skip
def test_probes_have_a_status_and_a_delay_each(server: SimulatedServer, fault: str, path: str) -> None:
    server.faults(**{fault: {"status": 503, "delay_s": 0.2}})
    began = time.monotonic()
    assert httpx.get(f"{server.url}{path}").status_code == 503
    assert time.monotonic() - began >= 0.2
    assert complete(server).status_code == 200
    server.faults(**{fault: {"never_answer": True}})
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{server.url}{path}", timeout=0.2)


def test_idle_connections_are_closed_after_the_given_time(server: SimulatedServer) -> None:
    server.faults(close_idle_s=0.1)
    with httpx.Client() as client:
        stream = client.get(f"{server.url}/health").extensions["network_stream"]
        assert stream.get_extra_info("socket").recv(1) == b""


def test_received_requests_are_listed_with_headers_and_body(server: SimulatedServer) -> None:
    httpx.post(f"{server.url}/v1/completions?x=1", json=COMPLETION, headers={"X-Mine": "yes"})
    (request,) = server.requests("/v1/completions")
    assert (request["method"], request["query"], request["body"]) == ("POST", "x=1", COMPLETION)
    assert request["headers"]["x-mine"] == "yes"
    assert (request["status"], request["disconnected"]) == (200, False)


def test_client_that_leaves_a_stream_stops_the_engine(server: SimulatedServer) -> None:
    server.faults(chunk_delay_s=0.2)
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream(
            "POST", f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 5000, "stream": True}
        ) as response,
    ):
        next(response.iter_raw())
    wait_until(lambda: server.requests("/v1/completions")[-1]["disconnected"], "disconnect seen")
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "engine idle")
    wait_until(lambda: server.metric("vllm:kv_cache_usage_perc") == 0, "its blocks freed")


def test_every_kv_load_can_fail() -> None:
    with SimulatedServer("prefill") as prefill, SimulatedServer("decode", faults={"fail_kv_load": True}) as decode:
        body = {**COMPLETION, "kv_transfer_params": {"do_remote_decode": True}}
        params = httpx.post(f"{prefill.url}/v1/completions", json=body).json()["kv_transfer_params"]
        assert complete(decode, kv_transfer_params=params).status_code == 500
        assert complete(decode).status_code == 200


def test_a_prefill_server_can_refuse_its_peers_as_after_a_stale_restart() -> None:
    with SimulatedServer("prefill", faults={"refuse_peers": True}) as prefill, SimulatedServer("decode") as decode:
        body = {**COMPLETION, "kv_transfer_params": {"do_remote_decode": True}}
        params = httpx.post(f"{prefill.url}/v1/completions", json=body).json()["kv_transfer_params"]
        assert complete(decode, kv_transfer_params=params).status_code == 500
