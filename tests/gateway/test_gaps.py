"""Gaps are taken once each, with the moment they ended, and summed up per server."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.gateway.gaps import WORST_POINTS, Harvest, Watch, nearest_rank
from tests.gateway.records import make_record


def harvest(gaps_ms: list[float]) -> Harvest:
    found = Harvest()
    Watch(make_record(gaps_ms)).take(found)
    return found


def test_a_gap_ends_where_the_first_token_and_the_gaps_before_it_say() -> None:
    assert harvest([10, 30]).ends == pytest.approx([1000.11, 1000.14])


def test_a_gap_is_taken_once() -> None:
    record, found = make_record([10]), Harvest()
    watch = Watch(record)
    watch.take(found)
    watch.take(found)
    record.gaps_ms.append(20)
    watch.take(found)
    assert list(found.gaps_ms) == [10, 20]
    assert found.ends == pytest.approx([1000.11, 1000.13])


def test_an_event_sums_up_the_gaps_of_a_batch() -> None:
    event = harvest([10, 10, 10, 500]).event("decode-1", "decode", 1001.0, limit_ms=200)
    assert (event["count"], event["tokens"]) == (4, 4)
    assert (event["p50_ms"], event["p99_ms"], event["max_ms"]) == (10, 500, 500)
    assert event["stalled_ms"] == 300


def test_the_worst_gaps_are_told_one_by_one() -> None:
    event = harvest([float(gap) for gap in range(1, 101)]).event("decode-1", "decode", 1001.0, 200)
    assert [gap for _, gap in event["points"]] == [float(gap) for gap in range(61, 101)]


def test_many_equal_gaps_give_no_more_points_than_any_other() -> None:
    event = harvest([10.0] * 500).event("decode-1", "decode", 1001.0, 200)
    assert len(event["points"]) == WORST_POINTS


@pytest.mark.parametrize(
    ("count", "share", "index"), [(1, 0.5, 0), (4, 0.5, 1), (5, 0.5, 2), (100, 0.99, 98), (101, 0.99, 99), (2, 0.99, 1)]
)
def test_nearest_rank(count: int, share: float, index: int) -> None:
    assert nearest_rank(count, share) == index


@given(st.lists(st.floats(0, 1e5, width=32), min_size=1, max_size=300))
def test_the_figures_of_a_batch_never_contradict_each_other(gaps_ms: list[float]) -> None:
    event = harvest(gaps_ms).event("decode-1", "decode", 1001.0, 200)
    assert event["p50_ms"] <= event["p99_ms"] <= event["max_ms"]
    assert max(gap for _, gap in event["points"]) == event["max_ms"]
    assert event["stalled_ms"] >= 0


def test_gaps_are_copied_not_shared() -> None:
    record, found = make_record([10]), Harvest()
    Watch(record).take(found)
    record.gaps_ms[0] = 99
    assert found.gaps_ms == array("f", [10])
