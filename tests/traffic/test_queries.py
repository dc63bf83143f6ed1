"""The list of requests with its filters, and one request with those that shared its server."""

from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from console.traffic import queries
from console.traffic.queries import Filters
from tests.factories import make_deployment
from tests.traffic.requests import moment, store

pytestmark = pytest.mark.django_db


def found(**filters: Any) -> set[str]:
    return {record.request_id for record in queries.find(Filters(**filters))}


def test_the_newest_request_comes_first() -> None:
    store(request_id="older", after_s=1)
    store(request_id="newer", after_s=2)
    assert [record.request_id for record in queries.find(Filters())] == ["newer", "older"]


def test_by_deployment() -> None:
    store(make_deployment("chat").pk, request_id="a")
    store(make_deployment("code").pk, request_id="b")
    assert found(deployment="code") == {"b"}


def test_by_server_on_either_side() -> None:
    store(request_id="a", prefill_server="gpu-1", decode_server="gpu-2")
    store(request_id="b", prefill_server="", decode_server="gpu-1")
    store(request_id="c", prefill_server="", decode_server="gpu-3")
    assert found(server="gpu-1") == {"a", "b"}


def test_by_outcome_and_route() -> None:
    store(request_id="a", outcome="failed")
    store(request_id="b", route="plain")
    store(request_id="c")
    assert found(outcome="failed") == {"a"}
    assert found(route="plain") == {"b"}


def test_by_least_ttft() -> None:
    store(request_id="slow", first_token_ms=900.0)
    store(request_id="fast", first_token_ms=90.0)
    store(request_id="no ttft", streamed=False, first_token_ms=None)
    assert found(min_ttft_ms=500) == {"slow"}
    assert found(min_ttft_ms=0) == {"slow", "fast"}


def test_by_part_of_its_id() -> None:
    store(request_id="abc-123")
    store(request_id="xyz-123")
    assert found(text="ABC") == {"abc-123"}


def test_by_time() -> None:
    for after_s in (0, 10, 20):
        store(request_id=str(after_s), after_s=after_s)
    assert found(since=moment(10), until=moment(20)) == {"10"}


def test_the_list_costs_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    deployment = make_deployment()
    for _ in range(3):
        store(deployment.pk)
    with django_assert_num_queries(1):
        assert [record.deployment.name for record in queries.find(Filters()) if record.deployment]


def test_a_row_has_the_shape_of_the_live_view() -> None:
    row = queries.request_row(store(gaps_ms=[10.0, 20.0, 90.0]))
    assert (row["ttft_ms"], row["p50_gap_ms"], row["max_gap_ms"], row["e2e_ms"]) == (100.0, 20.0, 90.0, 200.0)


def test_an_unknown_request_has_no_detail() -> None:
    assert queries.detail("nobody") is None


def shared(request_id: str) -> set[str]:
    detail = queries.detail(request_id)
    assert detail is not None
    return {record.request_id for record in detail.shared}


def test_requests_that_overlapped_on_the_decode_server_are_found() -> None:
    # On the decode server from 61 ms after it was received to 200 ms after.
    store(request_id="looked at", after_s=10)
    store(request_id="began before, still there", after_s=9, finished_ms=1100.0)
    store(request_id="began while it ran", after_s=10.1)
    store(request_id="ended before", after_s=9, finished_ms=1050.0)
    store(request_id="began after", after_s=10.2)
    store(request_id="elsewhere", after_s=10, decode_server_id=99)
    assert shared("looked at") == {"began before, still there", "began while it ran"}


def test_a_request_that_no_server_answered_shared_nothing() -> None:
    store(request_id="refused", decode_server_id=None, decode_sent_ms=None)
    assert shared("refused") == set()


def long_prompts(request_id: str) -> list[tuple[str, float | None]]:
    detail = queries.detail(request_id)
    assert detail is not None
    return [(long.record.request_id, long.worst_gap_ms) for long in detail.long_prompts]


def store_plain(request_id: str, after_s: float, **fields: Any) -> None:
    plain: dict[str, Any] = {
        "route": "plain",
        "prefill_server": "",
        "prefill_server_id": None,
        "prefill_sent_ms": None,
        "prefill_answered_ms": None,
        "decode_sent_ms": 1.0,
    }
    store(request_id=request_id, after_s=after_s, **{**plain, **fields})


def test_a_long_prompt_on_the_same_plain_server_is_named_with_the_gap_it_overlaps() -> None:
    # Streams from 10.1 s: gaps end at 10.11, 10.61 and 10.62 s.
    store_plain("stream", after_s=10, gaps_ms=[10.0, 500.0, 10.0], last_token_ms=620.0, finished_ms=621.0)
    store_plain("long", after_s=10.2, prompt_tokens=8000, first_token_ms=400.0)
    assert long_prompts("stream") == [("long", 500.0)]


def test_a_short_prompt_is_no_cause() -> None:
    store_plain("stream", after_s=10, last_token_ms=620.0)
    store_plain("short", after_s=10.2, prompt_tokens=100)
    assert long_prompts("stream") == []


def test_a_long_prompt_that_a_prefill_server_computed_does_not_touch_the_decode_server() -> None:
    store(request_id="stream", after_s=10, last_token_ms=620.0)
    store(request_id="long", after_s=10.2, prompt_tokens=8000)
    assert long_prompts("stream") == []


def test_a_long_prompt_before_the_first_token_is_no_cause_of_gaps() -> None:
    store_plain("stream", after_s=10, last_token_ms=620.0)
    store_plain("long", after_s=9, prompt_tokens=8000, first_token_ms=500.0)
    assert long_prompts("stream") == []
