"""What web processes share: one of them is first whoever was asked, and without Valkey nobody is locked out."""

import pytest
import redis
from django.core.cache import cache
from pytest_django import Settings

from console import shared


@pytest.fixture(autouse=True)
def _forgotten(valkey: "redis.Redis") -> None:
    cache.clear()


@pytest.fixture
def away(settings: Settings) -> None:
    """Nobody listens there."""
    settings.REDIS_URL = "redis://127.0.0.1:1/0"


def another_process() -> None:
    """Its memory is empty."""
    cache.clear()


def test_of_two_processes_one_is_first() -> None:
    assert shared.is_first("form", 60)
    another_process()
    assert not shared.is_first("form", 60)


def test_what_is_forgotten_may_come_again() -> None:
    shared.is_first("form", 60)
    shared.forget("form")
    assert shared.is_first("form", 60)


def test_all_processes_count_together_and_forget_in_time(valkey: "redis.Redis") -> None:
    shared.count("wrong", 60)
    another_process()
    shared.count("wrong", 60)
    assert shared.counted("wrong") == 2
    [key] = valkey.keys("*shared:wrong")
    assert 0 < valkey.ttl(key) <= 60


@pytest.mark.usefixtures("away")
def test_without_valkey_a_process_remembers_for_itself_and_nobody_is_locked_out() -> None:
    assert shared.is_first("form", 60)
    assert not shared.is_first("form", 60)
    shared.forget("form")
    assert shared.is_first("form", 60)
    assert shared.counted("wrong") == 0
    shared.count("wrong", 60)
    shared.count("wrong", 60)
    assert shared.counted("wrong") == 2
