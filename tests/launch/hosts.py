"""A host for tests: a state folder, a stand-in for the vllm command, and starts that are ended with the test."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from console.launch import command, process
from console.launch.agent import find_obstacle
from console.launch.contracts import LaunchSpec, ServerObservation
from console.launch.ports import PortBlock
from console.launch.starts import Starts
from console.launch.statefile import StateDir
from tests import own
from tests.launch.inputs import launch_inputs
from tests.waiting import wait_for

_FIRST_PORT = 11000 + own.number(40) * 250
_offsets = cycle(range(0, 240, 8))


def free_ports(data_parallel: int = 1) -> PortBlock:
    """Other ports at each call, below those the kernel gives away, in a share of this test process."""
    while True:
        block = PortBlock(_FIRST_PORT + next(_offsets), data_parallel)
        if all(map(own.is_free, block.ports)):
            return block


def stand_in(folder: Path, script: str) -> Path:
    """A `vllm` command that runs this Python script; it may print log lines and do what engines do."""
    path = folder / "vllm"
    path.write_text(f"#!{sys.executable}\nimport os, signal, subprocess, sys, threading, time\n{script}\n")
    path.chmod(0o755)
    return path


SLEEPER = "time.sleep(600)"
STUBBORN = """
signal.signal(signal.SIGTERM, lambda *_: print('not now', flush=True))
print('up', flush=True)
while True:
    time.sleep(1)
"""


class TestHost:
    __test__ = False

    def __init__(self, folder: Path, script: str = SLEEPER) -> None:
        self.folder = folder
        self.vllm = stand_in(folder, script)
        self._agents: list[Starts] = []
        self.starts = self.new_agent()

    def new_agent(self) -> Starts:
        """What a restarted agent has: the folder, and nothing remembered."""
        self.starts = Starts(StateDir(self.folder / "state"), self.vllm, find_obstacle)
        self._agents.append(self.starts)
        return self.starts

    def spec(self, generation: int = 1, server_id: int = 7, **fields: Any) -> LaunchSpec:
        defaults: dict[str, Any] = {"address": "127.0.0.1", "ports": free_ports(), "role": "plain", "gpu_indexes": ()}
        return command.build(launch_inputs(server_id=server_id, generation=generation, **{**defaults, **fields}))

    def launch(self, **fields: Any) -> LaunchSpec:
        spec = self.spec(**fields)
        self.starts.launch(spec)
        return spec

    def launch_until_up(self) -> None:
        """For a script that prints `up`."""
        self.launch()
        wait_for(lambda: "up" in self.log())

    def seen(self, server_id: int = 7) -> ServerObservation:
        """Its newest start."""
        self.starts.look()
        return [one for one in self.starts.observations() if one["server_id"] == server_id][-1]

    def wait(self, condition: Callable[[ServerObservation], Any], server_id: int = 7) -> ServerObservation:
        """The first observation for which `condition` holds."""
        found: list[ServerObservation] = []

        def holds() -> bool:
            found[:] = [self.seen(server_id)]
            return bool(condition(found[0]))

        wait_for(holds, f"last seen: {found}")
        return found[0]

    def pids(self) -> list[int]:
        """Every process of this host, however it came to be."""
        return process.marked(f"{self.folder / 'state'}:")

    def log(self, server_id: int = 7, generation: int = 1) -> str:
        path = self.starts.folder.log_path(server_id, generation)
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self) -> None:
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for starts in self._agents:
            for watched in starts.live():
                if watched.popen is not None:
                    watched.popen.wait()
