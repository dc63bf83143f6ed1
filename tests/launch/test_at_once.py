"""Nothing twice at the same time, and no more than there is room for."""

import pytest

from console.launch.at_once import AtOnce


def test_the_same_work_is_not_taken_twice_at_a_time() -> None:
    checks = AtOnce(4)
    with checks.taking("a") as first, checks.taking("a") as second:
        assert (first, second) == (True, False)
    with checks.taking("a") as again:
        assert again


def test_no_more_than_there_is_room_for() -> None:
    checks = AtOnce(1)
    with checks.taking("a"), checks.taking("b") as second:
        assert not second


def test_work_that_fails_makes_room() -> None:
    checks = AtOnce(1)
    with pytest.raises(RuntimeError), checks.taking("a"):
        raise RuntimeError
    with checks.taking("b") as taken:
        assert taken
