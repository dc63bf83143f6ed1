"""The few numbers kept of an engine's /metrics."""

import pytest

from console.launch.metrics import engine_sample

DECODE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 5120.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7959e+09
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 20.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_cache_hit"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"} 5000.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 640.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
vllm:nixl_xfer_time_seconds_bucket{engine="0",le="0.005",model_name="tiny"} 4.0
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="tiny"} 10.0
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="tiny"} 0.05
vllm:nixl_bytes_transferred_sum{engine="0",model_name="tiny"} 1.3e+07
vllm:nixl_bytes_transferred_count{engine="0",model_name="tiny"} 10.0
vllm:nixl_num_failed_transfers_total{engine="0",model_name="tiny"} 1.0
vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="tiny"} 4.0
process_cpu_seconds_total 12.5
"""


def test_the_numbers_of_a_decode_server() -> None:
    assert engine_sample(DECODE, 17.0) == {
        "at": 17.0,
        "running": 3,
        "waiting": 1,
        "kv_usage": 0.25,
        "prompt_tokens": 5120,
        "generation_tokens": 640,
        "external_kv_tokens": 5000,
        "local_compute_tokens": 20,
        "transfer_count": 10,
        "transfer_seconds": 0.05,
        "transfer_bytes": 1.3e7,
        "failed_transfers": 1,
        "expired_handoffs": 4,
        "preemptions": 2,
    }


def test_a_server_without_connector_has_no_transfers() -> None:
    sample = engine_sample('vllm:num_requests_running{engine="0"} 1.0\n', 0.0)
    assert (sample["running"], sample["transfer_count"], sample["external_kv_tokens"]) == (1, 0, 0)


def test_engines_of_one_server_are_added_up_and_the_fullest_cache_counts() -> None:
    sample = engine_sample(
        'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n',
        0.0,
    )
    assert (sample["running"], sample["kv_usage"]) == (3, 0.9)


@pytest.mark.parametrize("text", ["", "<html>busy</html>", "process_cpu_seconds_total 12.5\n"])
def test_an_answer_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no vllm"):
        engine_sample(text, 0.0)


def test_a_value_that_is_no_number_is_left_out() -> None:
    text = "vllm:num_requests_running{} what\nvllm:num_requests_waiting{} 2\n"
    assert engine_sample(text, 0.0)["waiting"] == 2
