"""One port for several processes: each listens with a socket of its own, and the kernel spreads the connections."""

import errno
import socket
from typing import Any

Address = tuple[socket.AddressFamily, tuple[Any, ...]]


class CannotListen(Exception):
    """Says in words why, and what to do."""


class Port:
    """Holds a port, so that nobody else gets it while none of our processes listens, and makes sockets for it."""

    def __init__(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises `CannotListen`."""
        self.number = port
        self._held: list[socket.socket] = []
        self._addresses: list[Address] = []
        try:
            for family, _, _, _, address in socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                self._hold(family, address)
        except OSError as error:
            self.close()
            raise CannotListen(_in_words(host, port, error)) from error

    def _hold(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        address = (address[0], self.number, *address[2:])
        held = _bound(family, address)
        # Only now: bound like this from the start it would share the port with strangers' sockets of the same kind.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.number = held.getsockname()[1]
        self._held.append(held)
        self._addresses.append((family, (address[0], self.number, *address[2:])))

    def sockets(self) -> list[socket.socket]:
        """One for each address of the host; for the process that calls this, and not listening yet."""
        return [_bound(family, address, shared=True) for family, address in self._addresses]

    def close(self) -> None:
        for held in self._held:
            held.close()


def _bound(family: socket.AddressFamily, address: tuple[Any, ...], *, shared: bool = False) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _in_words(host: str, port: int, error: OSError) -> str:
    host = host or "every address"
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is taken by another process. Stop that one, or choose another with --port."
    return f"Cannot listen on port {port} of {host}: {error.strerror or error}. Choose others with --host and --port."
