"""Every start that this host knows: launching, stopping, adopting, forgetting.

One lock guards all of it. What is done under it is short; waiting for an engine is done by looking again.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from console.launch import process
from console.launch.contracts import Cause, LaunchSpec, ServerObservation
from console.launch.logs import LogReader
from console.launch.probe import Probe
from console.launch.process import Identity
from console.launch.statefile import Start, StateDir, Stop, outdated
from console.launch.watch import Watched

RESUME_WITHIN_S = 120.0
"""A launch that an agent had begun when it died is finished by the next one, if that comes soon."""
PRODUCT_DIR = Path(__file__).resolve().parent.parent.parent

logger = logging.getLogger(__name__)
Obstacle = Callable[[LaunchSpec, "Starts"], Cause | None]


@dataclass(frozen=True)
class EngineCommand:
    """`argv` as this host runs it, and from which folder."""

    argv: list[str]
    folder: Path | None
    path: str
    """What the process finds other programs by."""


class EngineMissing(Exception):
    """There is no vLLM on this host."""


def resolve(spec: LaunchSpec, vllm: Path | None) -> EngineCommand:
    """Raises EngineMissing."""
    inherited = os.environ.get("PATH", os.defpath)
    if spec["engine"] == "simulated":
        return EngineCommand([sys.executable, *spec["argv"][1:]], PRODUCT_DIR, inherited)
    if vllm is None or not os.access(vllm, os.X_OK):
        raise EngineMissing
    return EngineCommand([str(vllm), *spec["argv"][1:]], None, f"{vllm.parent}{os.pathsep}{inherited}")


ENGINE_MISSING = Cause(
    code="engine_missing",
    message="vLLM was not found on this host.",
    instruction="Install vLLM there and restart the agent, with --vllm PATH if the command is not on its PATH.",
)


class Starts:
    """`obstacle` says why a launch cannot be done now, by looking at ports, processes and GPUs of the host."""

    def __init__(self, folder: StateDir, vllm: Path | None, obstacle: Obstacle) -> None:
        self.folder, self.vllm, self.obstacle = folder, vllm, obstacle
        self._lock = threading.RLock()
        self._watched: dict[tuple[int, int], Watched] = {}
        self._unsaved: set[tuple[int, int]] = set()
        self._shown: dict[tuple[int, int], object] = {}

    # Asked by the console

    def launch(self, spec: LaunchSpec, refused: Cause | None = None) -> None:
        """Once per server and generation; a start older than a known one is not done at all.

        `refused`: why it must not be done, found by a look that took too long for the lock.
        """
        with self._lock:
            if self.is_known(spec["server_id"], spec["generation"]):
                logger.info("%s generation %s: known already", spec["name"], spec["generation"])
                return
            start = Start(spec, spec["server_id"], spec["generation"], intended_at=time.time())
            self._add(start)
            if cause := refused or self.obstacle(spec, self):
                self._refuse(start, cause)
            elif self._save(start):
                self._spawn(start)

    def stop(self, server_id: int, generation: int, drain_s: float) -> None:
        """Asks once and returns; `look` does the rest. A start that was never seen is kept as gone."""
        with self._lock:
            watched = self._watched.get((server_id, generation))
            if watched is None:
                watched = self._add(Start(None, server_id, generation, time.time(), ended_at=time.time()))
                watched.start.stop = Stop(process.uptime_s(), process.boot_id())
            elif not watched.start.is_over:
                watched.ask_to_stop(drain_s)
            self._save(watched.start)
            watched.send_stop_signal()

    def drill(self, server_id: int, generation: int, who: str) -> bool:
        """Kills the engine of a simulated server as a crash would. False, and nothing done, for any other."""
        with self._lock:
            watched = self._watched.get((server_id, generation))
            spec = watched.start.spec if watched else None
            if watched is None or spec is None or spec["engine"] != "simulated" or not watched.alive:
                logger.warning("no drill on server %s start %s: not a running simulated one", server_id, generation)
                return False
            engines = process.engines_of(watched.group)
            watched.start.cause = _drilled(who, engines)
            self._save(watched.start)
            process.kill(engines)
            return True

    # Asked by the agent's loop

    def adopt(self) -> None:
        """Takes over what earlier agents of this host left: running, stopping, half launched or ended."""
        with self._lock:
            for start in self.folder.load():
                watched = self._add(start)
                if start.is_unborn:
                    self._finish_launch(start)
                elif not start.is_over and start.stop is not None:
                    watched.send_stop_signal()

    def look(self) -> bool:
        """Looks at every start that is not over. True when something changed that the console should know at once."""
        with self._lock:
            now = time.time()
            live = self.live()
            groups = process.groups_of(identity for watched in live if (identity := watched.start.identity))
            for watched in live:
                identity = watched.start.identity
                watched.look(groups.get(identity.pid, process.Group(())) if identity else process.Group(()), now)
                if watched.start.is_over:
                    self._end_strays(watched)
            return self._note_changes(self._watched.values())

    def take(self, server_id: int, generation: int, probe: Probe) -> None:
        with self._lock:
            if watched := self._watched.get((server_id, generation)):
                watched.take(probe, time.time())

    def forget_old(self) -> None:
        with self._lock:
            for server_id in {server_id for server_id, _ in self._watched}:
                for start in outdated(self._starts_of(server_id), time.time()):
                    self._drop(start)

    # What is known

    def live(self) -> list[Watched]:
        with self._lock:
            return [watched for watched in self._watched.values() if not watched.start.is_over]

    def newest_generation(self, server_id: int) -> int | None:
        with self._lock:
            return max((start.generation for start in self._starts_of(server_id)), default=None)

    def is_known(self, server_id: int, generation: int) -> bool:
        """This start, or a newer one of the same server, was asked for already."""
        return (self.newest_generation(server_id) or 0) >= generation

    def is_healthy(self, server_id: int, generation: int) -> bool:
        with self._lock:
            watched = self._watched.get((server_id, generation))
            return watched is not None and watched.probe.healthy

    def spec_of(self, server_id: int, generation: int) -> LaunchSpec | None:
        with self._lock:
            watched = self._watched.get((server_id, generation))
            return watched.start.spec if watched else None

    def observations(self) -> list[ServerObservation]:
        """The newest start of each server, and every older one that has not quite ended."""
        with self._lock:
            return [
                watched.observation()
                for (server_id, generation), watched in sorted(self._watched.items())
                if not watched.start.is_over or generation == self.newest_generation(server_id)
            ]

    def strays(self, server_id: int) -> list[int]:
        """Processes of any start of this server, wherever they moved to."""
        return process.marked(self._marker(server_id))

    # Parts

    def _marker(self, server_id: int, generation: int | None = None) -> str:
        beginning = f"{self.folder.path}:{server_id}:"
        return beginning if generation is None else f"{beginning}{generation}:"

    def _starts_of(self, server_id: int) -> list[Start]:
        return [watched.start for (known, _), watched in self._watched.items() if known == server_id]

    def _add(self, start: Start) -> Watched:
        key = (start.server_id, start.generation)
        self._watched[key] = Watched(start, LogReader(self.folder.log_path(*key)))
        return self._watched[key]

    def _drop(self, start: Start) -> None:
        key = (start.server_id, start.generation)
        self.folder.forget(start)
        self._watched.pop(key)
        self._shown.pop(key, None)
        self._unsaved.discard(key)

    def _refuse(self, start: Start, cause: Cause) -> None:
        start.cause, start.ended_at = cause, time.time()
        self._save(start)

    def _spawn(self, start: Start) -> None:
        """Between here and the second save, the marker in its environment is what a new agent finds it by."""
        try:
            popen = self._fork(start)
        except EngineMissing:
            self._refuse(start, ENGINE_MISSING)
        except OSError as error:
            self._refuse(start, _could_not_start(error))
        else:
            self._watched[(start.server_id, start.generation)].popen = popen
            self._take_process(start, process.identify(popen.pid) or Identity(popen.pid, 0, process.boot_id()))

    def _fork(self, start: Start) -> "subprocess.Popen[bytes]":
        spec, key = start.spec, (start.server_id, start.generation)
        if spec is None:
            raise EngineMissing
        engine = resolve(spec, self.vllm)
        added = {"PATH": engine.path, **spec["env"], **spec["secret_env"]}
        environment = process.child_environment(os.environ, added, self._marker(*key))
        return process.spawn(engine.argv, environment, self.folder.log_path(*key), engine.folder)

    def _take_process(self, start: Start, identity: Identity) -> None:
        start.identity = identity
        watched = self._watched[(start.server_id, start.generation)]
        watched.alive, watched.group = process.is_running(identity), process.Group((identity.pid,))
        start.started_at = process.started_at(identity) if identity.start_tick else time.time()
        start.progress.phase_times.setdefault("spawned", start.started_at)
        self._save(start)

    def _finish_launch(self, start: Start) -> None:
        """The agent died between writing its intention and the pid of the process; there may or may not be one."""
        if found := process.find_start(self._marker(start.server_id, start.generation)):
            self._take_process(start, found)
        elif start.spec is None or time.time() - start.intended_at > RESUME_WITHIN_S:
            self._refuse(start, _AGENT_DIED)
        elif cause := self.obstacle(start.spec, self):
            self._refuse(start, cause)
        else:
            self._spawn(start)

    def _end_strays(self, watched: Watched) -> None:
        """Workers that left the session would hold the GPU for ever; only where a stop was asked for.

        The start is over at the first look that finds none: a killed process lives a moment longer, and may fork.
        """
        start = watched.start
        if start.stop is None:
            return
        strays = process.Group(tuple(process.marked(self._marker(start.server_id, start.generation))))
        if strays:
            process.kill(strays)
            watched.hold_for(strays)

    def _save(self, start: Start) -> bool:
        """False when the disk refused; then it is tried again at each look, and nothing new is forked."""
        key = (start.server_id, start.generation)
        try:
            self.folder.save(start)
        except OSError as error:
            logger.error("cannot write the state of server %s: %s", start.server_id, error)
            self._unsaved.add(key)
            if start.is_unborn:
                start.cause, start.ended_at = _could_not_start(error), time.time()
            return False
        self._unsaved.discard(key)
        return True

    def _note_changes(self, watched: Iterable[Watched]) -> bool:
        changed = False
        for one in watched:
            key, shown = (one.start.server_id, one.start.generation), _shown(one)
            if self._shown.get(key) != shown:
                self._shown[key] = shown
                changed = True
                self._unsaved.add(key)
        for key in list(self._unsaved):
            self._save(self._watched[key].start)
        return changed


def _shown(watched: Watched) -> object:
    """What the console hears of at once when it changes; the rest can wait for the next report."""
    quiet = replace(watched.start, progress=replace(watched.start.progress, last_line=""), log_offset=0)
    return repr(quiet), watched.alive, watched.group, watched.probe.healthy


def _could_not_start(error: OSError) -> Cause:
    return Cause(
        code="could_not_start",
        message=f"The host could not start the process: {error.strerror or error}",
        instruction="Make room or correct the permissions on the host, then start the server again.",
    )


def _drilled(who: str, engines: process.Group) -> Cause:
    pids = ", ".join(map(str, engines.pids))
    return Cause(
        code="drill",
        message=f"A drill: {who} had its engine killed (process {pids}), as a crash would.",
        instruction="Look at the requests of that moment, then press Start to bring it back.",
    )


_AGENT_DIED = Cause(
    code="agent_died",
    message="The host's agent ended while it was starting this server; no process was started.",
    instruction="Start the server again.",
)
