"""The host's addresses and ports: which are its own, which are taken, which one others reach it by. Linux."""

import errno
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from console.launch.contracts import Nic

_LISTEN = "0A"


class NoAddress(Exception):
    """The message says what to do."""


def can_bind(address: str, port: int) -> bool:
    """Whether a server could listen there now. Raises NoAddress when `address` is not one of this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the engine does, so that connections of an ended server which still linger do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise NoAddress(f"{address} is not an address of this host: {error.strerror or error}") from error
    return True


def busy_ports(port_range: tuple[int, int]) -> list[int]:
    """Ports in the range, both ends included, that something on this host listens on."""
    first, last = port_range
    return sorted({port for port in _listening_ports() if first <= port <= last})


def _listening_ports() -> Iterator[int]:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN:
                yield int(fields[1].rpartition(":")[2], 16)


def nics() -> list[Nic]:
    """Network cards that are up, with the addresses that other machines can use; loopback comes last."""
    states = psutil.net_if_stats()
    cards = [
        Nic(name=name, addresses=addresses, speed_mbps=states[name].speed or None)
        for name, entries in psutil.net_if_addrs().items()
        if name in states
        and states[name].isup
        and (addresses := [entry.address for entry in entries if _is_usable(entry.family, entry.address)])
    ]
    return sorted(cards, key=lambda card: all(map(is_loopback, card["addresses"])))


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def address_towards(host: str, port: int, timeout_s: float = 5.0) -> str:
    """The address of the interface through which `host` is reached. Raises OSError when it cannot be."""
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        return str(connection.getsockname()[0])


def _is_usable(family: int, address: str) -> bool:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return False
    # Link-local addresses carry the name of a card ("fe80::1%eth0") that means nothing elsewhere.
    return "%" not in address and not ipaddress.ip_address(address).is_link_local
