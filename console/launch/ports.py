"""Which ports of its host a server gets. Pure: what is taken is an argument.

A server owns a block of neighbours inside the host's range:

    API · side channel (one for each data-parallel rank) · ports that the engine picks for its own parts
"""

from collections.abc import Iterable
from dataclasses import dataclass

INTERNAL_PORTS = 4
"""vLLM looks for free ports upwards from VLLM_PORT; a start of one server never meets another's within these."""


class NoPortsLeft(Exception):
    """The message names the range and what to do."""


@dataclass(frozen=True)
class PortBlock:
    api: int
    data_parallel: int = 1

    @property
    def side_channel(self) -> int:
        return self.api + 1

    @property
    def side_channels(self) -> range:
        return range(self.side_channel, self.side_channel + self.data_parallel)

    @property
    def internal(self) -> int:
        """VLLM_PORT: where the engine begins to look for ports of its own."""
        return self.side_channel + self.data_parallel

    @property
    def ports(self) -> range:
        return range(self.api, self.internal + INTERNAL_PORTS)


def allot(
    port_range: tuple[int, int], taken: Iterable[int], data_parallel: int = 1, previous_api_port: int | None = None
) -> PortBlock:
    """The next free block after the previous one, so that a new start never listens where peers knew the old one.

    `taken`: every port of the host's other live servers (`PortBlock.ports`) and those it reported as busy.
    Raises NoPortsLeft.
    """
    first, last = port_range
    avoided = set(taken)
    if previous_api_port is not None:
        avoided.update(PortBlock(previous_api_port, data_parallel).side_channels)
    size = len(PortBlock(first, data_parallel).ports)
    starts = range(first, last - size + 2)
    for start in _rotated(starts, previous_api_port):
        block = PortBlock(start, data_parallel)
        if avoided.isdisjoint(block.ports):
            return block
    raise NoPortsLeft(
        f"No {size} neighbouring ports are free between {first} and {last} on this host. "
        "Stop a server there, or start its agent with a wider --port-range."
    )


def _rotated(starts: range, previous: int | None) -> Iterable[int]:
    if previous is None or previous not in starts:
        return starts
    after = starts.index(previous) + 1
    return [*starts[after:], *starts[:after]]
