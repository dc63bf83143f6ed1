"""What a test process has for itself on a machine where others run tests as well."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

WORKERS, SHARES = 4, 40
PORTS_FROM, PORTS_EACH = 61000, 112
"""Above those that the kernel gives to whoever asks for any."""


def number(count: int) -> int:
    """Below `count`: another one for each worker of a run, up to four, and mostly another for another run."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return os.getppid() % (count // WORKERS) * WORKERS + worker % WORKERS


def is_free(port: int) -> bool:
    """Whether somebody could listen there now. Those who have just left it do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_first_port = PORTS_FROM + number(SHARES) * PORTS_EACH
_ports = cycle(range(_first_port, _first_port + PORTS_EACH))


def free_port() -> int:
    """For a process that listens there later. Another one at each call, and nobody else's.

    One that the kernel picks may be somebody else's by the time that the process is up.
    """
    return next(filter(is_free, _ports))


def hold_port() -> socket.socket:
    """Keeps a free port of 127.0.0.1 from being given to anybody else, until it is closed.

    A server that is told the port can listen on it meanwhile: it sets SO_REUSEADDR as well, and nobody listens here.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def port_of(holder: socket.socket) -> int:
    return int(holder.getsockname()[1])


@contextmanager
def held_port() -> Iterator[int]:
    """As `hold_port`, until the block ends."""
    with hold_port() as holder:
        yield port_of(holder)
