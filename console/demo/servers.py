"""The servers that a demo's agent started: they outlive agent and console by design, and end with the demo."""

import time
from pathlib import Path

from console.launch import process
from console.launch.statefile import Start, StateDir, Stop

TERM_WAIT_S = 1.5
KILL_WAIT_S = 1.5


class LaunchedServers:
    """Read from the agent's state folder, so that it works whatever became of the agent. Call when it has ended."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = StateDir(state_dir)

    def _running(self) -> list[tuple[Start, process.Identity]]:
        starts = [(start, start.identity) for start in self.state_dir.load() if start.identity is not None]
        groups = process.groups_of(identity for _, identity in starts)
        return [(start, identity) for start, identity in starts if groups.get(identity.pid)]

    def end(self) -> None:
        """SIGTERM to every server, a moment to obey, SIGKILL to what is left of their groups."""
        running = self._running()
        for start, identity in running:
            # Noted as wanted, so that the next run does not report these as servers that ended by themselves.
            start.stop = start.stop or Stop(kill_at_uptime_s=process.uptime_s(), boot_id=process.boot_id())
            self.state_dir.save(start)
            process.terminate(identity)
        leaders = [identity for _, identity in running]
        if not _wait_until_gone(leaders, TERM_WAIT_S):
            _kill_until_gone(leaders)


def _wait_until_gone(leaders: list[process.Identity], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while any(process.groups_of(leaders).values()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _kill_until_gone(leaders: list[process.Identity]) -> None:
    deadline = time.monotonic() + KILL_WAIT_S
    while left := [group for group in process.groups_of(leaders).values() if group]:
        for group in left:
            process.kill(group)
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
