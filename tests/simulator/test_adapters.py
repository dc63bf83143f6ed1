"""Further names of a model, and LoRA adapters: which cards tell of them, and who may load them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.simulator.harness import MODEL, NAME, SimulatedServer

MAY_LOAD = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def cards(server: SimulatedServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/v1/models").json()["data"]
    return found


def post(server: SimulatedServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body)


def complete(server: SimulatedServer, model: str, **body: Any) -> httpx.Response:
    return post(server, "/v1/completions", **{"model": model, "prompt": "x" * 400, "max_tokens": 2} | body)


def test_every_name_and_adapter_has_a_card() -> None:
    adapter = '{"name": "other", "path": "/b", "base_model_name": "second"}'
    with SimulatedServer(args=["--served-model-name", NAME, "second", "--lora-modules", "lora=/a", adapter]) as server:
        shown = [(card["id"], card["root"], card["parent"], card["max_model_len"]) for card in cards(server)]
    assert shown == [
        (NAME, MODEL, None, 32_768),
        ("second", MODEL, None, 32_768),
        ("lora", "/a", NAME, None),
        ("other", "/b", "second", None),
    ]


def test_an_adapter_answers_under_its_own_name_and_a_model_under_its_first() -> None:
    with SimulatedServer(args=["--served-model-name", NAME, "second", "--lora-modules", "lora=/a"]) as server:
        answered = {name: complete(server, name).json()["model"] for name in (NAME, "second", "lora")}
        assert complete(server, "third").status_code == 404
    assert answered == {NAME: NAME, "second": NAME, "lora": "lora"}


def test_an_adapter_finds_no_cache_of_the_model() -> None:
    with SimulatedServer(args=["--lora-modules", "lora=/a", "--enable-prompt-tokens-details"]) as server:
        cached = [
            complete(server, name).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            for name in (NAME, "lora", "lora")
        ]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


def test_adapters_are_loaded_and_unloaded_while_it_runs_where_that_is_allowed() -> None:
    with SimulatedServer(env=MAY_LOAD) as server:
        loaded = post(server, "/v1/load_lora_adapter", lora_name="late", lora_path="/c")
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'late' added successfully.")
        assert [card["id"] for card in cards(server)] == [NAME, "late"]
        assert post(server, "/v1/load_lora_adapter", lora_name="late", lora_path="/c").status_code == 400
        assert post(server, "/v1/load_lora_adapter", lora_name=NAME, lora_path="/c").status_code == 400
        assert post(server, "/v1/unload_lora_adapter", lora_name="late").status_code == 200
        assert post(server, "/v1/unload_lora_adapter", lora_name="late").status_code == 404
        assert complete(server, "late").status_code == 404


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_nobody_loads_adapters_unless_it_is_allowed(path: str) -> None:
    with SimulatedServer() as server:
        assert post(server, path, lora_name="late", lora_path="/c").status_code == 404
