"""The names, labels and buckets of /metrics, and what moves them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.simulator.harness import SimulatedServer

GAUGES = {"num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
          "cache_config_info", "engine_sleep_state"}  # fmt: skip
COUNTERS = {
    "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries", "external_prefix_cache_hits",
    "prompt_tokens_by_source", "prompt_tokens", "prompt_tokens_cached", "generation_tokens", "num_preemptions",
    "request_success", "estimated_flops_per_gpu", "estimated_read_bytes_per_gpu",
}  # fmt: skip
HISTOGRAMS = {
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens",
    "iteration_tokens_total", "request_num_preemptions", "request_prefill_kv_computed_tokens",
}  # fmt: skip
NIXL = {
    "nixl_xfer_time_seconds", "nixl_post_time_seconds", "nixl_bytes_transferred", "nixl_num_descriptors",
    "nixl_num_failed_transfers", "nixl_num_failed_notifications", "nixl_num_kv_expired_reqs",
}  # fmt: skip

TTFT_BOUNDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
               640, 2560, inf]  # fmt: skip
ITL_BOUNDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, inf]
E2E_BOUNDS = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, inf]


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer() as started:
        ask(started, max_tokens=5)
        yield started


def ask(server: SimulatedServer, max_tokens: int) -> None:
    body = {"prompt": "count me " * 50, "max_tokens": max_tokens}
    httpx.post(f"{server.url}/v1/completions", json=body).raise_for_status()


def families(server: SimulatedServer) -> dict[str, str]:
    """Types by name, without `vllm:`."""
    found = text_string_to_metric_families(server.metrics())
    return {family.name.removeprefix("vllm:"): family.type for family in found}


def bounds(server: SimulatedServer, name: str) -> list[float]:
    for family in text_string_to_metric_families(server.metrics()):
        if family.name == f"vllm:{name}":
            return [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
    raise KeyError(name)


def test_families_have_vllms_names_and_types(server: SimulatedServer) -> None:
    types = families(server)
    assert {name for name, kind in types.items() if kind == "gauge"} >= GAUGES
    assert {name for name, kind in types.items() if kind == "counter"} >= COUNTERS
    assert {name for name, kind in types.items() if kind == "histogram"} >= HISTOGRAMS


def test_nixl_families_exist_only_with_the_connector(server: SimulatedServer) -> None:
    assert not NIXL & set(families(server))
    for role in ("prefill", "decode"):
        with SimulatedServer(role) as connected:
            assert set(families(connected)) >= NIXL


def test_all_engine_samples_are_labelled_with_engine_and_model(server: SimulatedServer) -> None:
    for family in text_string_to_metric_families(server.metrics()):
        if family.name.startswith("vllm:") and family.name != "vllm:cache_config_info":
            for sample in family.samples:
                assert (sample.labels["engine"], sample.labels["model_name"]) == ("0", "tiny")


def test_counters_have_a_created_twin(server: SimulatedServer) -> None:
    assert "vllm:prompt_tokens_created{" in server.metrics()


def test_buckets_are_vllms(server: SimulatedServer) -> None:
    assert bounds(server, "time_to_first_token_seconds") == TTFT_BOUNDS
    assert bounds(server, "inter_token_latency_seconds") == ITL_BOUNDS
    assert bounds(server, "request_time_per_output_token_seconds") == ITL_BOUNDS
    assert bounds(server, "e2e_request_latency_seconds") == E2E_BOUNDS
    assert bounds(server, "request_params_n") == [1, 2, 5, 10, 20, inf]


def test_a_request_moves_its_counters_and_histograms() -> None:
    with SimulatedServer() as server:
        ask(server, max_tokens=5)
        assert server.metric("vllm:generation_tokens_total") == 5
        assert server.metric("vllm:request_success_total", finished_reason="length") == 1
        assert server.metric("vllm:request_success_total", finished_reason="error") == 0
        assert server.metric("vllm:time_to_first_token_seconds_count") == 1
        assert server.metric("vllm:inter_token_latency_seconds_count") == 4
        assert server.metric("vllm:prompt_tokens_total") == server.metric(
            "vllm:prompt_tokens_by_source_total", source="local_compute"
        )


def test_prompt_tokens_by_source_add_up_when_the_prefix_is_cached(server: SimulatedServer) -> None:
    ask(server, max_tokens=1)
    hits = server.metric("vllm:prefix_cache_hits_total")
    assert hits > 0
    assert server.metric("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == hits
    assert server.metric("vllm:prompt_tokens_by_source_total") == server.metric("vllm:prompt_tokens_total")


def test_cache_config_tells_sizes_in_its_labels() -> None:
    with SimulatedServer(env={"SIMULATOR_KV_TOKENS": "64000"}) as small:
        assert small.metric("vllm:cache_config_info", block_size="16", num_gpu_blocks="4000") == 1
        assert small.metric("vllm:cache_config_info", kv_cache_size_tokens="64000") == 1


def test_http_requests_are_counted_by_handler_method_and_status(server: SimulatedServer) -> None:
    httpx.get(f"{server.url}/nothing")
    assert server.metric("http_requests_total", handler="/nothing", method="GET", status="4xx") == 1
    assert server.metric("process_resident_memory_bytes") > 0


def test_full_cache_makes_requests_wait_for_capacity() -> None:
    env = {"SIMULATOR_KV_TOKENS": "512", "SIMULATOR_SPEED": "1"}
    with SimulatedServer("prefill", env=env, args=["--max-model-len", "512"]) as server:
        body = {"prompt": "x" * 1600, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        httpx.post(f"{server.url}/v1/completions", json=body).raise_for_status()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json={**body, "prompt": "y" * 1600}, timeout=0.4)
        # Seen while the second request was waiting or just given up: no request was refused for it.
        assert server.metric("vllm:request_success_total", finished_reason="error") == 0
        assert server.metric("vllm:kv_cache_usage_perc") > 0.7
