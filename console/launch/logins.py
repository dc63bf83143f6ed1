"""Hosts' own logins at the broker: access-control users that may touch what their host needs and nothing else.

The broker forgets them when it restarts; the rows remember, and `keep` makes them again.
"""

import logging
from collections.abc import Mapping
from typing import Any

import redis
from django.conf import settings

from console import valkey
from console.launch.reporter import channel_of

COMMANDS = (
    *("auth", "hello", "ping", "select", "client|setinfo", "client|setname"),
    # Celery: taking messages from the queue, and keeping those under way until they are done.
    *("llen", "brpop", "lpush", "rpush", "hset", "hget", "hdel", "zadd", "zrem", "zrange", "sadd", "smembers"),
    *("multi", "exec", "discard", "watch", "unwatch", "set", "get", "setex", "expire", "del", "evalsha", "script|load"),
    # Answers and reports.
    "publish",
)
"""Found by running an agent with the broker's ACL LOG."""
_NOT_FOR_US = (redis.exceptions.NoPermissionError, redis.ResponseError)
"""The broker does not let the console manage logins, or knows no such thing."""

logger = logging.getLogger(__name__)


def username(host: str) -> str:
    return f"{_beginning()}{host}"


def rules(host: str) -> list[str]:
    """Of `ACL SETUSER`: everything that lets the host's agent work, without its password."""
    queue, prefix = f"host.{host}", settings.REDIS_PREFIX
    answers = f"{prefix}:result:celery-task-meta-{queue}.*"
    keys = [queue, f"agent:{host}"]
    keys += [f"_kombu.binding.{queue}", f"_kombu.binding_permanent.{queue}"]
    keys += [f"unacked.{queue}", f"unacked_index.{queue}", f"unacked_mutex.{queue}"]
    allowed = [f"~{prefix}:{key}" for key in keys] + [f"~{answers}", f"&{answers}", f"&{channel_of(prefix, host)}"]
    return ["reset", "on", *allowed, *(f"+{command}" for command in COMMANDS)]


def are_possible() -> bool:
    """Whether the broker lets us manage logins. Raises what `valkey.Down` names when it does not answer."""
    name = f"{_beginning()}~trial"
    try:
        _acl("SETUSER", name, "reset")
        _acl("DELUSER", name)
    except _NOT_FOR_US:
        return False
    return True


def grant(host: str, hashed: str) -> None:
    """`hashed`: SHA-256 of the host's secret, hex. Connections with an earlier secret are cut."""
    _acl("DELUSER", username(host))
    _acl("SETUSER", username(host), *rules(host), f"#{hashed}")


def take_back(host: str) -> None:
    """The broker cuts its connections with the same command. Never raises: `keep` tries again."""
    try:
        _acl("DELUSER", username(host))
    except valkey.Down as error:
        logger.warning("the login of host %s could not be deleted yet: %s", host, error)


def keep(wanted: Mapping[str, str]) -> None:
    """Makes what is missing (host to hash), deletes what nobody wants. Raises what `valkey.Down` names."""
    there = {name for name in _all_users() if name.startswith(_beginning())}
    for host, hashed in wanted.items():
        if username(host) not in there:
            logger.info("making the login of host %s at the broker again", host)
            grant(host, hashed)
    for name in there - {username(host) for host in wanted}:
        logger.info("deleting the login %s at the broker: no host has it", name)
        _acl("DELUSER", name)


def _all_users() -> list[str]:
    try:
        users = _acl("USERS")
    except _NOT_FOR_US:
        return []
    return [name.decode(errors="replace") for name in users]


def _acl(*words: str) -> Any:
    return valkey.client().execute_command("ACL", *words)  # type: ignore[no-untyped-call]


def _beginning() -> str:
    return f"{settings.REDIS_PREFIX}-host-"
