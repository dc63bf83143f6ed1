"""What a test process has for itself on a machine where others run tests as well."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

SHARES = 32
PORTS_FROM, PORTS_EACH = 61000, 140
"""Above those that the kernel gives to whoever asks for any."""


def _claimed_share() -> int:
    """No other test process has it while this one lives, whichever run it belongs to.

    Its first port is bound for that, without SO_REUSEADDR, so that nobody else can; it closes with the process. Where
    the search begins differs from run to run: what a killed run has left behind is in the way of few.
    """
    for step in range(SHARES):
        share = (os.getppid() + step) % SHARES
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", PORTS_FROM + share * PORTS_EACH))
        except OSError:
            claim.close()
            continue
        claim.detach()
        return share
    raise RuntimeError(f"There are {SHARES} processes with tests on this machine already.")


_share = _claimed_share()


def number(count: int) -> int:
    """Below `count`, which is `SHARES` or more: another one for each process with tests."""
    assert count >= SHARES
    return _share


def is_free(port: int) -> bool:
    """Whether somebody could listen there now. Those who have just left it do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_first_port = PORTS_FROM + _share * PORTS_EACH + 1
_ports = cycle(range(_first_port, _first_port + PORTS_EACH - 1))


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
