"""The servers that a demo's agent started: they outlive agent and console by design, and end with the demo."""

import time
from pathlib import Path

from console.launch import process
from console.launch.statefile import StateDir

TERM_WAIT_S = 2.5
KILL_WAIT_S = 3.0
"""What was killed lives a moment longer, on a busy machine a long one."""
LOOK_EVERY_S = 0.1
"""Each look reads the whole process table."""


class LaunchedServers:
    """Read from the agent's state folder, so that it works whatever became of the agent."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = StateDir(state_dir)
        self.asked_at = time.monotonic()

    def ask_to_end(self) -> None:
        """SIGTERM to every server. They finish running requests first, which end when their clients do."""
        self.asked_at = time.monotonic()
        for leader in self._leaders():
            process.terminate(leader)

    def end(self) -> None:
        """Call when the agent has ended. SIGKILL to what is left of their groups, after a moment to obey."""
        leaders = self._leaders()
        while time.monotonic() < self.asked_at + TERM_WAIT_S and any(process.groups_of(leaders).values()):
            time.sleep(LOOK_EVERY_S)
        deadline = time.monotonic() + KILL_WAIT_S
        while left := [group for group in process.groups_of(leaders).values() if group]:
            for group in left:
                process.kill(group)
            if time.monotonic() > deadline:
                return
            time.sleep(LOOK_EVERY_S)

    def _leaders(self) -> list[process.Identity]:
        return [start.identity for start in self.state_dir.load() if start.identity is not None and not start.is_over]
