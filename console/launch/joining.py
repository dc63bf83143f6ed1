"""Reaching the broker from a host: what can be wrong with its address, in words, and which address is our own."""

import contextlib
import logging
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import redis

from console.launch.network import NoAddress, address_towards
from console.launch.process import boot_id

TIMEOUT_S = 5.0
TCP_USER_TIMEOUT_S = 15
_SCHEMES = ("redis", "rediss")
NAME_LEASE_S = 15

logger = logging.getLogger(__name__)


class CannotJoin(Exception):
    """The message says what is wrong and what to do."""


class LoginRefused(CannotJoin):
    """The broker answers, and does not take the password."""


def check_broker(url: str, if_refused: str = "") -> None:
    """Raises CannotJoin unless the broker answers; LoginRefused, in the words of `if_refused`, for a wrong password."""
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
        raise LoginRefused(if_refused or _wrong_password(shown(url))) from error
    except redis.ResponseError as error:
        raise CannotJoin(f"The broker at {shown(url)} refuses: {error}") from error
    except (redis.RedisError, OSError) as error:
        raise CannotJoin(_unreachable(shown(url), error)) from error
    finally:
        client.close()


class NameClaim:
    """Says at the broker who uses a host's name: two machines of one name would each get half of its launches.

    A lease, renewed with every report, so that a name whose machine is gone is free again after some seconds. The same
    machine and state folder may take it at once, for that is the same agent started again.
    """

    def __init__(self, broker_url: str, key: str, owner: str) -> None:
        self._client = redis.Redis.from_url(broker_url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S)
        self._key, self._owner = key, owner
        self._lost = False

    def take(self, wait_s: float = NAME_LEASE_S + 1) -> None:
        """Waits for a lease that may be about to end. Raises CannotJoin when another machine keeps it."""
        deadline = time.monotonic() + wait_s
        while not self._take_once():
            if time.monotonic() > deadline:
                raise CannotJoin(
                    f"Another machine ({self._machine()}) has joined under this name. "
                    "Choose another --name, or stop the agent there."
                )
            time.sleep(0.25)

    def renew(self) -> None:
        """Never raises: while the broker is away there is nobody to tell."""
        with contextlib.suppress(redis.RedisError):
            taken = self._take_once()
            if not taken and not self._lost:
                logger.error("another machine (%s) has joined under this host's name", self._machine())
            self._lost = not taken

    def release(self) -> None:
        try:
            if self._holder() == self._owner:
                self._client.delete(self._key)
        except redis.RedisError:
            logger.info("the name is released by itself in %s s", NAME_LEASE_S)
        finally:
            self._client.close()

    def _take_once(self) -> bool:
        if self._client.set(self._key, self._owner, nx=True, ex=NAME_LEASE_S):
            return True
        return self._holder() == self._owner and bool(self._client.expire(self._key, NAME_LEASE_S))

    def _machine(self) -> str:
        return self._holder().split(":")[0]

    def _holder(self) -> str:
        """Empty when nobody holds it."""
        held = self._client.get(self._key)
        return held.decode() if isinstance(held, bytes) else ""


def owner_of(state_dir: Path) -> str:
    return f"{socket.gethostname()}:{boot_id()}:{state_dir}"


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


def transport_options(queue: str) -> dict[str, object]:
    """A dead broker is noticed in seconds: of a cut cable TCP alone says nothing for a quarter of an hour.

    Messages under way are kept under names of this queue: launches hold keys, which other hosts' agents must not read.
    """
    keepalive = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
    return {
        "unacked_key": f"unacked.{queue}",
        "unacked_index_key": f"unacked_index.{queue}",
        "unacked_mutex_key": f"unacked_mutex.{queue}",
        "priority_steps": [0],
        "socket_connect_timeout": TIMEOUT_S,
        # Both are needed for Celery to see that the connection on which it waits for tasks is dead.
        "socket_timeout": 2 * TIMEOUT_S,
        "health_check_interval": TIMEOUT_S,
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
