"""Fixtures for the whole suite: a clean Valkey for each test that uses one, and plain factories in tests.factories."""

import inspect
from collections.abc import Iterator

import httpx
import pytest
import redis
from django.conf import settings
from django.test import override_settings
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from console.launch import introduction, remote

# How fast examples are made says something about the machine, not about the code.
hypothesis_settings.register_profile("switchyard", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("switchyard")

ANSWER_LIMIT_S = 60.0


@pytest.fixture
def valkey() -> Iterator["redis.Redis"]:
    """A client of the test process's own Valkey, emptied before the test."""
    client = redis.Redis.from_url(settings.REDIS_URL)
    client.flushdb()
    yield client
    client.close()


@pytest.fixture(autouse=True, scope="session")
def quick_passwords() -> Iterator[None]:
    """Storing a password the way people's are takes half a second, and tests make many accounts."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """Some seconds, which a person would wait and httpx gives an answer by itself, are short on a busy machine."""
    usual: httpx.Timeout = inspect.signature(httpx.request).parameters["timeout"].default
    usual.connect = usual.read = usual.write = usual.pool = ANSWER_LIMIT_S
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(introduction, "TIMEOUT_S", ANSWER_LIMIT_S)
        patched.setattr(remote, "TAIL_TIMEOUT_S", ANSWER_LIMIT_S)
        yield
