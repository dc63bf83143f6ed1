"""The routes of a vLLM server, and who may use them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.simulator.harness import MODEL, SimulatedServer

COMPLETION = {"prompt": "x", "max_tokens": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(args=["--max-model-len", "4096"]) as started:
        yield started


def test_health_is_200_with_an_empty_body(server: SimulatedServer) -> None:
    response = httpx.get(f"{server.url}/health")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_answers_both_methods(server: SimulatedServer, method: str) -> None:
    assert httpx.request(method, f"{server.url}/ping").status_code == 200


def test_version_load_and_models(server: SimulatedServer) -> None:
    assert httpx.get(f"{server.url}/version").json() == {"version": "0.31.0"}
    assert httpx.get(f"{server.url}/load").json() == {"server_load": 0}
    card = httpx.get(f"{server.url}/v1/models").json()["data"][0]
    assert (card["id"], card["root"], card["max_model_len"], card["owned_by"]) == ("tiny", MODEL, 4096, "vllm")


def test_tokenize_and_detokenize_are_inverse(server: SimulatedServer) -> None:
    answer = httpx.post(f"{server.url}/tokenize", json={"prompt": "hello there", "return_token_strs": True}).json()
    assert (answer["count"], answer["max_model_len"]) == (3, 4096)
    assert answer["token_strs"] == ["hell", "o th", "ere"]
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": "hello there"}


def test_tokenize_counts_a_chat_as_its_usage_does(server: SimulatedServer) -> None:
    messages = [{"role": "user", "content": "hello there"}]
    count = httpx.post(f"{server.url}/tokenize", json={"messages": messages}).json()["count"]
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize("path", ["/nothing", "/v1/embeddings", "/pause"])
def test_unknown_path_is_404(server: SimulatedServer, path: str) -> None:
    response = httpx.post(f"{server.url}{path}", json={})
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


def test_trailing_slash_is_redirected(server: SimulatedServer) -> None:
    response = httpx.post(f"{server.url}/v1/completions/", json=COMPLETION)
    assert (response.status_code, response.headers["location"]) == (307, f"{server.url}/v1/completions")


def test_wrong_method_is_405(server: SimulatedServer) -> None:
    response = httpx.get(f"{server.url}/v1/completions")
    assert (response.status_code, response.json()) == (405, {"detail": "Method Not Allowed"})
    assert response.headers["allow"] == "POST"


def test_head_is_answered_without_a_body(server: SimulatedServer) -> None:
    with httpx.Client() as client:
        assert client.head(f"{server.url}/health").status_code == 405
        assert client.get(f"{server.url}/health").status_code == 200


def test_stored_responses_are_not_found(server: SimulatedServer) -> None:
    assert httpx.get(f"{server.url}/v1/responses/resp_1").status_code == 404
    assert httpx.post(f"{server.url}/v1/responses/resp_1/cancel").status_code == 404


def test_openapi_lists_the_routes(server: SimulatedServer) -> None:
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    assert "/v1/chat/completions" in paths
    assert "/simulator/faults" not in paths


def test_requests_follow_each_other_on_one_connection(server: SimulatedServer) -> None:
    with httpx.Client() as client:
        for _ in range(3):
            assert client.get(f"{server.url}/health").status_code == 200
        assert client.post(f"{server.url}/v1/completions", json=COMPLETION).status_code == 200


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_api_key_guards_v1_and_nothing_else(by: str) -> None:
    args = ["--api-key", "secret"] if by == "flag" else []
    env = {"VLLM_API_KEY": "secret"} if by == "environment" else {}
    with SimulatedServer(args=args, env=env) as guarded:
        refused = httpx.post(f"{guarded.url}/v1/completions", json=COMPLETION)
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        headers = {"Authorization": "Bearer secret"}
        assert httpx.post(f"{guarded.url}/v1/completions", json=COMPLETION, headers=headers).status_code == 200
        for path in ("/health", "/metrics", "/version", "/load", "/docs"):
            assert httpx.get(f"{guarded.url}{path}").status_code == 200
        assert httpx.post(f"{guarded.url}/invocations", json=COMPLETION).status_code == 200
        assert "secret" not in guarded.log()


def test_root_path_comes_before_v1() -> None:
    with SimulatedServer(args=["--root-path", "/engine", "--api-key", "k"]) as server:
        assert httpx.get(f"{server.url}/engine/v1/models").status_code == 401


def test_development_routes_exist_only_in_development_mode() -> None:
    with SimulatedServer(env={"VLLM_SERVER_DEV_MODE": "1"}) as server:
        httpx.post(f"{server.url}/pause").raise_for_status()
        assert httpx.get(f"{server.url}/is_paused").json() == {"is_paused": True}
        assert httpx.get(f"{server.url}/health").status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=COMPLETION, timeout=0.3)
        httpx.post(f"{server.url}/resume").raise_for_status()
        assert httpx.post(f"{server.url}/v1/completions", json=COMPLETION).status_code == 200


def test_pooling_server_embeds_and_does_not_complete() -> None:
    with SimulatedServer(args=["--runner", "pooling"]) as server:
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": ["a", "b"]}).json()
        assert [item["index"] for item in answer["data"]] == [0, 1]
        assert httpx.post(f"{server.url}/v1/completions", json=COMPLETION).status_code == 404


def test_control_routes_are_closed_unless_asked_for() -> None:
    with SimulatedServer(env={"SIMULATOR_CONTROL": "0"}) as server:
        assert httpx.post(f"{server.url}/simulator/faults", json={}).status_code == 404
        assert httpx.get(f"{server.url}/simulator/requests").status_code == 404


def test_idle_connections_are_closed_after_the_keep_alive_time() -> None:
    with SimulatedServer(env={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}) as server, httpx.Client() as client:
        client.get(f"{server.url}/health")
        stream = client.get(f"{server.url}/health").extensions["network_stream"]
        assert stream.get_extra_info("socket").recv(1) == b""
