"""Connections to the one Valkey (or Redis) that carries live streams, router loads and nudges."""

from functools import lru_cache
from typing import TypeAlias

import redis
import redis.asyncio
from django.conf import settings

AsyncClient: TypeAlias = redis.asyncio.Redis

CONNECT_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 2.0

Down = (redis.RedisError, OSError, TimeoutError)
"""What a call raises when Valkey is away or does not answer in time. Trying again later can help."""


def key(*parts: str) -> str:
    return ":".join((settings.REDIS_PREFIX, *parts))


def client() -> "redis.Redis":
    """For synchronous code; shared by the threads of a process."""
    return _client(settings.REDIS_URL)


@lru_cache(maxsize=4)
def _client(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=ANSWER_TIMEOUT_S)


def async_client(answer_timeout_s: float = ANSWER_TIMEOUT_S) -> AsyncClient:
    """For one event loop; the caller closes it. A blocking read needs a timeout longer than its wait."""
    return redis.asyncio.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=answer_timeout_s
    )
