"""Noticing on live traffic that no KV arrives."""

from console.launch.handoffs import NOTICED_AFTER, SplitTraffic, fresh, judge, kv_arrived
from tests.observations import make_sample


def test_kv_that_arrives_begins_the_count_anew() -> None:
    watch = fresh(make_sample(external_kv_tokens=500), now=100.0)
    assert kv_arrived(watch, make_sample(external_kv_tokens=900))
    assert not kv_arrived(watch, make_sample(external_kv_tokens=500))


def test_prompts_computed_by_the_decode_server_are_noticed_within_a_few_requests() -> None:
    watch = fresh(make_sample(), now=100.0)
    sample = make_sample(local_compute_tokens=2500)
    seen = judge(watch, sample, SplitTraffic(requests=NOTICED_AFTER, prompt_tokens=2500))
    assert seen["not_transferred"]
    assert "KV not transferred" in seen["text"]


def test_a_request_or_two_are_no_proof() -> None:
    watch = fresh(make_sample(), now=100.0)
    assert judge(watch, make_sample(local_compute_tokens=900), SplitTraffic(requests=2, prompt_tokens=900)) == watch


def test_prompts_found_in_its_own_cache_are_no_fault() -> None:
    watch = fresh(make_sample(), now=100.0)
    sample = make_sample(local_compute_tokens=60)
    assert judge(watch, sample, SplitTraffic(requests=30, prompt_tokens=30_000)) == watch


def test_counters_that_begin_anew_are_no_fault() -> None:
    watch = fresh(make_sample(external_kv_tokens=500, local_compute_tokens=90), now=100.0)
    assert kv_arrived(watch, make_sample(external_kv_tokens=500, local_compute_tokens=0))
