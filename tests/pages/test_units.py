"""Numbers in words, the same on the server as in the script."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.fleet.templatetags.units import (
    byte_size,
    clock,
    gib,
    gpus,
    milliseconds,
    percent_css,
    seconds,
    signed_milliseconds,
    told,
    whole,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.44, "0.4 ms"), (38.4, "38 ms"), (999, "999 ms"), (1240, "1.24 s"), (12400, "12.4 s"), (None, "–"), ("", "–")],
)
def test_milliseconds(value: float | None, words: str) -> None:
    assert milliseconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.8, "0.8 s"), (12, "12 s"), (250, "4 min 10 s"), (11100, "3 h 5 min"), (200_000, "2 days"), (None, "–")],
)
def test_seconds(value: float | None, words: str) -> None:
    assert seconds(value) == words


def test_a_duration_may_be_a_timedelta_and_is_never_negative() -> None:
    assert seconds(timedelta(seconds=14.2)) == "14 s"
    assert seconds(-3) == "0.0 s"


def test_times_of_other_days_carry_their_date() -> None:
    assert clock(datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)) == "2020-02-03 04:05:06"
    assert clock(datetime.now(UTC).timestamp()).count(":") == 2


def test_sizes_counts_and_shares() -> None:
    assert (byte_size(999), byte_size(38_900), byte_size(2_000_000_000)) == ("999 B", "38.9 kB", "2.0 GB")
    assert (gib(40960), whole(12345), percent_css(1.7), percent_css(None)) == (
        "40.0 GiB",
        "12\u202f345",
        "100.0%",
        "0.0%",
    )
    assert (gpus([]), gpus([2]), gpus([0, 1])) == ("no GPU", "GPU 2", "GPUs 0, 1")
    assert (signed_milliseconds(-1240), signed_milliseconds(38)) == ("−1.24 s", "+38 ms")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        ("", "–"),
        ([], "–"),
        ({}, "–"),
        (0, "0"),
        (12.0, "12"),
        (True, "yes"),
        ([0, 1], "0, 1"),
        (["chat-1", "chat-2"], "chat-1, chat-2"),
        (["--hf-overrides", '{"a": 1}'], "--hf-overrides '{\"a\": 1}'"),
        ({"A": "b", "C": ["d", "e"]}, "A=b, C=d, e"),
        ("2026-11-30T22:00:05.120000+00:00", "2026-11-30 22:00"),
    ],
)
def test_a_setting_is_told_as_people_write(value: Any, words: str) -> None:
    assert told(value) == words
