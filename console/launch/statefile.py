"""What a host remembers of every start, on disk: the truth that a new agent goes on from.

<state dir>/agent.lock                      held by the agent that owns this folder
<state dir>/servers/<id>/<generation>.json  one start; written before its process exists, and at each change
<state dir>/servers/<id>/<generation>.log   what it writes
"""

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from console.launch.contracts import Cause, LaunchSpec
from console.launch.phases import Progress
from console.launch.process import Identity

KEPT_GENERATIONS = 3
FORGET_AFTER_S = 7 * 24 * 3600.0
LOCK_WAIT_S = 10.0

logger = logging.getLogger(__name__)


class StateDirInUse(Exception):
    """Another agent owns the folder; the message says which and what to do."""


@dataclass
class Stop:
    """A stop under way. Times are seconds since boot, so that a clock change neither hurries nor delays it."""

    kill_at_uptime_s: float
    boot_id: str
    killed_at_uptime_s: float | None = None


@dataclass
class Start:
    """One start of one server. Without an identity nothing was forked yet, or the launch was refused."""

    spec: LaunchSpec | None
    """None: the stop of a start that this host never saw."""
    server_id: int
    generation: int
    intended_at: float
    identity: Identity | None = None
    started_at: float | None = None
    exit_code: int | None = None
    main_ended_at: float | None = None
    """Unix time at which the main process was first seen gone."""
    ended_at: float | None = None
    """Unix time at which nothing of it was left, or at which it was refused."""
    stop: Stop | None = None
    cause: Cause | None = None
    progress: Progress = field(default_factory=Progress)
    log_offset: int = 0

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def is_unborn(self) -> bool:
        """Meant to be started; no process is known yet."""
        return self.identity is None and not self.is_over


class StateDir:
    """The folder of one host's agent. Everything in it is readable by its owner only: states hold API keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log_path(self, server_id: int, generation: int) -> Path:
        return self._folder(server_id) / f"{generation}.log"

    def save(self, start: Start) -> None:
        """Whole or not at all, on disk when this returns. Raises OSError."""
        folder = self._folder(start.server_id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{start.generation}.json"
        temporary = path.with_suffix(".new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(start), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def load(self) -> list[Start]:
        """Every start in the folder. A file that cannot be read is left alone and logged."""
        paths = sorted(self.path.glob("servers/*/*.json"))
        return [start for path in paths if (start := _read(path)) is not None]

    def forget(self, start: Start) -> None:
        folder = self._folder(start.server_id)
        for suffix in (".json", ".log", ".new"):
            (folder / f"{start.generation}{suffix}").unlink(missing_ok=True)
        if folder.exists() and not any(folder.iterdir()):
            folder.rmdir()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """One agent at a time; waits a little for one that is just ending. Raises StateDirInUse."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.path / "agent.lock").open("a+") as lock:
            _lock(lock.fileno(), self.path)
            lock.seek(0)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def _folder(self, server_id: int) -> Path:
        return self.path / "servers" / str(server_id)


def outdated(starts: list[Start], now: float) -> list[Start]:
    """Those of one server that may be forgotten: over, and either old or followed by enough newer ones."""
    newest_first = sorted(starts, key=lambda start: start.generation, reverse=True)
    return [
        start
        for position, start in enumerate(newest_first)
        if start.ended_at is not None and (position >= KEPT_GENERATIONS or now - start.ended_at > FORGET_AFTER_S)
    ]


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StateDirInUse(_in_use(path)) from None
            time.sleep(0.1)


def _in_use(path: Path) -> str:
    owner = (path / "agent.lock").read_text().strip()
    return f"Another agent (process {owner}) uses {path}. Stop it first, or give this one another --state-dir."


def _read(path: Path) -> Start | None:
    try:
        return _start(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("left alone %s: %s", path, error)
        return None


def _start(values: dict[str, Any]) -> Start:
    identity, stop = values.pop("identity"), values.pop("stop")
    return Start(
        **{
            **values,
            "progress": Progress(**values["progress"]),
            "identity": Identity(**identity) if identity else None,
            "stop": Stop(**stop) if stop else None,
        }
    )
