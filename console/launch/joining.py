"""Reaching the broker from a host: what can be wrong with its address, in words, and which address is our own."""

import socket
from urllib.parse import urlsplit

import redis

from console.launch.network import NoAddress, address_towards

TIMEOUT_S = 5.0
TCP_USER_TIMEOUT_S = 15
_SCHEMES = ("redis", "rediss")


class CannotJoin(Exception):
    """The message says what is wrong and what to do."""


def check_broker(url: str) -> None:
    """Raises CannotJoin unless the broker answers and takes the password."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise CannotJoin(
            "The broker's address must look like redis://:password@host:6379/0. "
            "Copy it from the console's page that adds a host."
        )
    client = redis.Redis.from_url(url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S)
    try:
        client.ping()
    except redis.AuthenticationError as error:
        raise CannotJoin(_wrong_password(shown(url))) from error
    except redis.ResponseError as error:
        raise CannotJoin(f"The broker at {shown(url)} refuses: {error}") from error
    except (redis.RedisError, OSError) as error:
        raise CannotJoin(_unreachable(shown(url), error)) from error
    finally:
        client.close()


def own_address(broker_url: str) -> str:
    """The address of the interface through which the broker is reached. Raises CannotJoin."""
    parts = urlsplit(broker_url)
    try:
        return address_towards(parts.hostname or "", parts.port or 6379, TIMEOUT_S)
    except (OSError, NoAddress) as error:
        raise CannotJoin(_unreachable(shown(broker_url), error)) from error


def shown(url: str) -> str:
    """Without its password."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or 6379}{parts.path}"


def transport_options() -> dict[str, object]:
    """So that a dead broker is noticed in seconds: of a cut cable TCP alone says nothing for a quarter of an hour."""
    keepalive = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
    return {
        "socket_connect_timeout": TIMEOUT_S,
        "socket_keepalive": True,
        "socket_keepalive_options": {**keepalive, socket.TCP_USER_TIMEOUT: TCP_USER_TIMEOUT_S * 1000},
    }


def _wrong_password(url: str) -> str:
    return (
        f"The broker at {url} does not take this password. "
        "Copy the whole address, password included, from the console's page that adds a host."
    )


def _unreachable(url: str, error: Exception) -> str:
    return (
        f"The broker at {url} cannot be reached: {error}. "
        "Check that the console runs, that this is the address other hosts use, and that no firewall is in between."
    )
