"""One long-running process of a local Switchyard: started in a group of its own, found again after a crash."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

LOG_KEPT_BYTES = 10_000_000
TAIL_BYTES = 4000
PR_SET_PDEATHSIG = 1
KILLED_WAIT_S = 3.0
"""What was killed lives a moment longer, on a busy machine a long one."""
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. `env` is the whole environment of the child."""

    name: str
    argv: list[str]
    env: Mapping[str, str]


class Child:
    """A running or ended `ChildSpec`. Its pid is also its process group and session.

    Its output goes to `log/<name>.log`; `run/<name>.json` names the process, so that the next run finds what a killed
    supervisor left. The kernel sends it SIGTERM when the supervisor dies.
    """

    def __init__(self, spec: ChildSpec, data_dir: Path) -> None:
        self.spec = spec
        self.log = data_dir / "log" / f"{spec.name}.log"
        self.mark = data_dir / "run" / f"{spec.name}.json"
        self.started_at = time.monotonic()
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        for folder in (self.log.parent, self.mark.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_KEPT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.spec.argv,
                env=dict(self.spec.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        with contextlib.suppress(psutil.NoSuchProcess):
            created = psutil.Process(process.pid).create_time()
            self.mark.write_text(json.dumps({"pid": process.pid, "created": created}))
        return process

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def exit_code(self) -> int | None:
        """None while it runs. Negative: the number of the signal that ended it."""
        return self.process.poll()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started_at

    def signal(self, number: signal.Signals) -> None:
        signal_group(self.process.pid, number)

    def forget(self) -> None:
        """Call once it has ended."""
        self.mark.unlink(missing_ok=True)

    def last_lines(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").rstrip()
        return ""


def _die_with(supervisor: int) -> Callable[[], None]:
    """What the child does between fork and exec."""

    def ask_the_kernel() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:  # it died before we asked
            os._exit(1)

    return ask_the_kernel


def signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def kill_groups(groups: Iterable[int]) -> None:
    """Returns when nothing of them runs any more, ports and files are free: what they had started included."""
    killed = list(groups)
    for group in killed:
        signal_group(group, signal.SIGKILL)
    deadline = time.monotonic() + KILLED_WAIT_S
    while any(map(_has_members, killed)) and time.monotonic() < deadline:
        time.sleep(0.02)


def _has_members(group: int) -> bool:
    """Those that have ended do not count, whether or not somebody has waited for them."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(_is_member(process, group) for process in psutil.process_iter())


def _is_member(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def end_leftovers(data_dir: Path, limit_s: float = 4.0) -> list[str]:
    """Ends what an earlier supervisor with this data folder started and left; returns the names.

    A process is ours only if pid and start time both agree with its mark: pids are used again.
    """
    found: dict[str, psutil.Process] = {}
    for mark in sorted((data_dir / "run").glob("*.json")):
        process = _still_running(mark)
        mark.unlink(missing_ok=True)
        if process is not None:
            found[mark.stem] = process
    for process in found.values():
        signal_group(process.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(list(found.values()), timeout=limit_s)
    kill_groups(process.pid for process in alive)
    return list(found)


def _still_running(mark: Path) -> psutil.Process | None:
    try:
        noted = json.loads(mark.read_text())
        process = psutil.Process(noted["pid"])
        return process if abs(process.create_time() - noted["created"]) < 1.0 else None
    except (ValueError, KeyError, TypeError, psutil.Error):
        return None
