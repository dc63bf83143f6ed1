"""Fixtures for the whole suite: a clean Valkey for each test that uses one, and plain factories in tests.factories."""

from collections.abc import Iterator

import pytest
import redis
from django.conf import settings


@pytest.fixture
def valkey() -> Iterator["redis.Redis"]:
    """A client of the test process's own Valkey, emptied before the test."""
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.flushdb()
    yield client
    client.close()
