"""What a host is: machine, network, engines, and what its GPUs do right now."""

import os
import platform
import socket

import psutil

from console.launch.contracts import GpuReport, Inventory
from console.launch.engines import EngineCache
from console.launch.gpus import MIB, GpuReader, Holder
from console.launch.network import busy_ports, nics
from console.launch.watch import Watched

AGENT_VERSION = "0.1.0"


class HostInventory:
    """`engines` remembers for a minute; everything else is read anew, which costs some milliseconds."""

    def __init__(self, port_range: tuple[int, int], engines: EngineCache, gpus: GpuReader) -> None:
        self.port_range, self.engines, self.gpus = port_range, engines, gpus

    def read(self) -> Inventory:
        cards = nics()
        return Inventory(
            hostname=socket.gethostname(),
            cpu_count=os.cpu_count() or 1,
            memory_total_mib=psutil.virtual_memory().total // MIB,
            python=platform.python_version(),
            agent_version=AGENT_VERSION,
            engines=self.engines.read(),
            port_range=self.port_range,
            busy_ports=busy_ports(self.port_range),
            addresses=[address for card in cards for address in card["addresses"]],
            nics=cards,
        )

    def read_gpus(self, live: list[Watched]) -> list[GpuReport]:
        return self.gpus.read([holder for watched in live if (holder := _holder(watched))])


def _holder(watched: Watched) -> Holder | None:
    spec, identity, sample = watched.start.spec, watched.start.identity, watched.probe.sample
    if spec is None or identity is None or not watched.group:
        return None
    return Holder(spec["gpu_indexes"], spec["name"], identity.pid, sample["running"] if sample else 0)
