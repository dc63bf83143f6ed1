"""TTFT and gaps of a window: which requests count, and how exact the figures are."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.gateway.gaps import nearest_rank
from console.traffic.percentiles import RELATIVE_ERROR, Sketch, Window, stalled, window
from tests.factories import make_deployment
from tests.traffic.requests import moment, store


@pytest.fixture
def deployment_id(db: None) -> int:
    return make_deployment().pk


def measured(deployment_id: int, end_s: float = 3600) -> Window:
    return window(deployment_id, moment(0), moment(end_s))


def test_requests_without_streaming_are_left_out_of_ttft_and_counted(deployment_id: int) -> None:
    for number in range(1, 11):
        store(deployment_id, first_token_ms=100.0 * number)
        store(deployment_id, streamed=False, first_token_ms=None, finished_ms=99_999.0, gaps_ms=[])
    found = measured(deployment_id)
    assert (found["ttft_count"], found["without_ttft"], found["requests"]) == (10, 10, 20)
    assert found["ttft_p50_ms"] == pytest.approx(500, rel=RELATIVE_ERROR)
    assert found["ttft_p99_ms"] == pytest.approx(1000, rel=0.1)


def test_the_window_begins_with_its_start_and_ends_before_its_end(deployment_id: int) -> None:
    for after_s in (-1, 0, 59, 60):
        store(deployment_id, after_s=after_s)
    assert measured(deployment_id, end_s=60)["requests"] == 2


def test_other_deployments_do_not_count(deployment_id: int) -> None:
    store(make_deployment().pk)
    assert measured(deployment_id)["requests"] == 0


def test_gaps_of_all_requests_count_one_by_one(deployment_id: int) -> None:
    store(deployment_id, gaps_ms=[10.0] * 98)
    store(deployment_id, gaps_ms=[10.0, 900.0])
    found = measured(deployment_id)
    assert (found["gap_count"], found["gap_max_ms"]) == (100, 900.0)
    assert found["gap_p50_ms"] == pytest.approx(10, rel=RELATIVE_ERROR)


def test_time_above_the_gap_limit_is_stalled_time(deployment_id: int) -> None:
    store(deployment_id, gaps_ms=[100.0, 250.0, 300.0])
    assert measured(deployment_id)["stalled_ms"] == 150.0
    assert stalled([100, 250, 300], limit_ms=275) == 25


def test_the_deployments_own_gap_limit_decides(db: None) -> None:
    deployment = make_deployment(gap_limit_ms=50)
    store(deployment.pk, gaps_ms=[60.0])
    found = measured(deployment.pk)
    assert (found["gap_limit_ms"], found["stalled_ms"]) == (50.0, 10.0)


def test_outcomes_and_tokens_are_counted(deployment_id: int) -> None:
    store(deployment_id, prompt_tokens=10, completion_tokens=4)
    store(deployment_id, outcome="failed", prompt_tokens=None, completion_tokens=None)
    found = measured(deployment_id)
    assert found["outcomes"] == {"ok": 1, "failed": 1}
    assert (found["prompt_tokens"], found["completion_tokens"]) == (10, 4)


def test_an_empty_window_has_no_figures(deployment_id: int) -> None:
    found = measured(deployment_id)
    assert (found["requests"], found["ttft_p50_ms"], found["gap_p99_ms"], found["gap_max_ms"]) == (0, None, None, None)


def test_a_window_fits_a_json_column(deployment_id: int) -> None:
    store(deployment_id)
    found: Any = measured(deployment_id)
    assert json.loads(json.dumps(found)) == found


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=500), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_is_within_one_percent_of_the_exact_one(values: list[float], share: float) -> None:
    sketch = Sketch()
    sketch.add(values)
    ordered = sorted(values)
    # The sketch takes the value at rank share·(n-1), rounded down; the exact one lies there.
    exact = ordered[int(share * (len(values) - 1))]
    assert sketch.at(share) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.01, abs=0.01)
    assert sketch.largest == ordered[-1]


def test_two_sketches_merge_into_one() -> None:
    one, other = Sketch(), Sketch()
    one.add([1.0] * 50)
    other.add([100.0] * 50)
    one.merge(other)
    assert (one.count, one.largest) == (100, 100.0)
    assert one.at(0.99) == pytest.approx(100, rel=RELATIVE_ERROR)


def test_the_nearest_rank_of_the_whole_is_the_largest() -> None:
    assert nearest_rank(10, 1.0) == 9
