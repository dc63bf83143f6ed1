"""The parts of a request add up to the whole, whatever marks it has."""

from itertools import pairwise

import pytest

from console.traffic.models import RequestRecord
from console.traffic.waterfall import parts, tpot_ms, whole_ms


def record(**marks: float | int | None) -> RequestRecord:
    return RequestRecord(request_id="r", **marks)


SPLIT = {
    "chosen_ms": 1.0,
    "prefill_sent_ms": 3.0,
    "prefill_answered_ms": 93.0,
    "decode_sent_ms": 94.0,
    "decode_opened_ms": 140.0,
    "first_token_ms": 150.0,
    "last_token_ms": 480.0,
    "finished_ms": 481.0,
}


def test_a_split_request_has_a_prefill_a_hand_off_and_a_stream() -> None:
    assert [(part.name, part.took_ms) for part in parts(record(**SPLIT))] == [
        ("Choosing servers", 1.0),
        ("Sending it on", 2.0),
        ("Prefill", 90.0),
        ("Hand-off to the first token", 57.0),
        ("Stream", 330.0),
        ("Closing", 1.0),
    ]


@pytest.mark.parametrize(
    "marks",
    [
        SPLIT,
        {"chosen_ms": 1.0, "decode_sent_ms": 2.0, "first_token_ms": 50.0, "last_token_ms": 80.0, "finished_ms": 81.0},
        {"chosen_ms": 1.0, "decode_sent_ms": 2.0, "finished_ms": 900.0},
        {"chosen_ms": 1.0, "prefill_sent_ms": 2.0, "finished_ms": 30.0},
        {"finished_ms": 0.2},
    ],
)
def test_the_parts_add_up_to_the_whole_without_holes(marks: dict[str, float]) -> None:
    subject = record(**marks)
    found = parts(subject)
    assert sum(part.took_ms for part in found) == pytest.approx(whole_ms(subject))
    assert found[0].began_ms == 0
    for one, following in pairwise(found):
        assert one.began_ms + one.took_ms == pytest.approx(following.began_ms)


def test_a_request_without_marks_has_no_parts() -> None:
    assert parts(record()) == []


def test_time_per_token_leaves_the_first_token_out() -> None:
    assert tpot_ms(record(first_token_ms=100.0, last_token_ms=400.0, completion_tokens=31)) == 10.0


@pytest.mark.parametrize("tokens", [None, 0, 1])
def test_one_token_has_no_time_per_token(tokens: int | None) -> None:
    assert tpot_ms(record(first_token_ms=100.0, last_token_ms=400.0, completion_tokens=tokens)) is None
