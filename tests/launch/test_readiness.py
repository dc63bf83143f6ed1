"""What answers make a server ready and a pair usable."""

import pytest

from console.launch import readiness
from tests.observations import make_sample


@pytest.mark.parametrize(
    ("events", "has"),
    [
        ("", False),
        ('data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n', False),
        ('data: {"choices": [{"text": "a"}], "usage": null}\n\n', False),
        (": a comment\n\ndata: not JSON\n\ndata: 7\n\n", False),
        ('data: {"choices": []}\n\ndata: {"choices": [], "usage": {"total_tokens": 3}}\n\ndata: [DONE]\n\n', True),
    ],
)
def test_usage_is_found_in_any_event_of_a_stream(events: str, has: bool) -> None:
    assert readiness.has_usage(events) is has


def test_the_context_length_is_read_from_the_model_card() -> None:
    facts = readiness.model_facts({"data": [{"id": "chat", "max_model_len": 8192}]}, "chat")
    assert (facts.max_model_len, facts.problem) == (8192, None)


def test_another_model_is_named() -> None:
    assert readiness.model_facts({"data": [{"id": "other"}]}, "chat").problem == "it serves other instead of chat"


@pytest.mark.parametrize("body", [None, [], {}, {"data": 3}, "text"])
def test_something_that_is_no_list_of_models_is_a_problem(body: object) -> None:
    assert readiness.model_facts(body, "chat").problem is not None


@pytest.mark.parametrize(
    ("body", "sound"), [({"choices": [{"text": "x"}]}, True), ({"choices": []}, False), ({}, False)]
)
def test_a_completion_needs_a_choice(body: object, sound: bool) -> None:
    assert (readiness.completion_problem(body) is None) is sound


@pytest.mark.parametrize("params", [None, {}, {"remote_block_ids": None}, {"remote_block_ids": []}])
def test_a_prefill_server_that_hands_nothing_over_is_a_problem(params: object) -> None:
    assert readiness.handoff_problem({"kv_transfer_params": params}) is not None


def test_blocks_that_are_handed_over_are_fine() -> None:
    assert readiness.handoff_problem({"kv_transfer_params": {"remote_block_ids": [[1, 2]]}}) is None


def test_kv_from_outside_proves_the_hand_off() -> None:
    assert readiness.transfer_problem(make_sample(), make_sample(external_kv_tokens=500), 512) is None


def test_a_prompt_computed_by_the_decode_server_disproves_it() -> None:
    after = make_sample(local_compute_tokens=512, failed_transfers=2)
    problem = readiness.transfer_problem(make_sample(), after, 512)
    assert problem == "the decode server took 0 of 512 prompt tokens from the prefill server, 2 transfers failed."


def test_time_and_bytes_are_means_over_the_transfers_seen() -> None:
    after = make_sample(transfer_count=2, transfer_seconds=0.016, transfer_bytes=3000)
    assert readiness.transfer_between(make_sample(), after) == readiness.Transfer(8.0, 1500)


def test_an_engine_that_does_not_count_transfers_has_no_time() -> None:
    assert readiness.transfer_between(make_sample(), make_sample()) == readiness.Transfer(None, None)


def test_waits_grow_up_to_a_minute() -> None:
    assert [readiness.retry_in_s(attempts) for attempts in (0, 1, 2, 5, 6, 99)] == [1, 2, 4, 32, 60, 60]


def test_counters_are_clear_only_without_other_prompts() -> None:
    assert readiness.is_clear(make_sample(), make_sample(external_kv_tokens=500, local_compute_tokens=1), 512)
    assert not readiness.is_clear(make_sample(), make_sample(external_kv_tokens=500, local_compute_tokens=600), 512)
