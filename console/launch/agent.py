"""A host's agent: carries out what the console asks and reports what it sees. No database.

Its Celery tasks are short and only note what to do; one loop looks at processes, logs and ports, and a second thread
sends reports, so that a broker that does not answer never stops the looking.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from console.celery import app
from console.launch import obstacles, preflight
from console.launch.contracts import Cause, Check, HostReport, LaunchSpec, LogTail
from console.launch.engines import EngineCache
from console.launch.gpus import GpuReader
from console.launch.inventory import HostInventory
from console.launch.logs import tail
from console.launch.probe import probe
from console.launch.reporter import Reporter
from console.launch.starts import Starts
from console.launch.statefile import StateDir
from console.launch.watch import Watched

LOOK_EVERY_S = 0.5
FORGET_EVERY_S = 600.0
PROBES_AT_ONCE = 8
END_LIMIT_S = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentOptions:
    name: str
    address: str
    state_dir: Path
    port_range: tuple[int, int]
    vllm: Path | None
    gpus: GpuReader
    report_every_s: float


class Agent:
    """Lives as long as the process. `run` is the loop; `launch`, `stop` and the rest are called from task threads."""

    def __init__(self, options: AgentOptions, reporter: Reporter) -> None:
        self.options, self.reporter = options, reporter
        self.folder = StateDir(options.state_dir)
        self.starts = Starts(self.folder, options.vllm, find_obstacle)
        self.inventory = HostInventory(options.port_range, EngineCache(options.vllm), options.gpus)
        self.started_at = time.time()
        self._seq = 0
        self._wake, self._ending = threading.Event(), threading.Event()
        self._asking_or_ending = threading.Lock()
        self._probes = ThreadPoolExecutor(PROBES_AT_ONCE, thread_name_prefix="probe")
        self._probing: set[tuple[int, int]] = set()

    # Tasks

    def launch(self, spec: LaunchSpec) -> None:
        if self.starts.is_known(spec["server_id"], spec["generation"]):
            return
        self.starts.launch(spec, obstacles.wait_for_gpus(lambda: self._held_gpus(spec)))
        self._wake.set()

    def stop(self, server_id: int, generation: int, drain_s: float) -> None:
        self.starts.stop(server_id, generation, drain_s)
        self._wake.set()

    def drill(self, server_id: int, generation: int, who: str) -> None:
        self.starts.drill(server_id, generation, who)
        self._wake.set()

    def tail(self, server_id: int, generation: int, max_bytes: int) -> LogTail:
        spec = self.starts.spec_of(server_id, generation)
        secrets = spec["secret_env"].values() if spec else ()
        return tail(self.folder.log_path(server_id, generation), max_bytes, secrets)

    def preflight(self, spec: LaunchSpec) -> list[Check]:
        live = self.starts.live()
        known = self.starts.strays(spec["server_id"])
        host = preflight.HostView(
            vllm=self.options.vllm,
            gpus=self.inventory.read_gpus(live),
            our_servers=_names_by_pid(live),
            leftovers=known,
            state_dir=self.options.state_dir,
        )
        return preflight.run(spec, host)

    # Loop

    def run(self) -> None:
        """Until `end`. Whatever goes wrong in one part of a look is logged, and the next look is made."""
        report_at = forget_at = time.monotonic()
        while not self._ending.is_set():
            now = time.monotonic()
            changed = self._tried("looking at the servers", self.starts.look)
            if changed or now >= report_at:
                self._tried("making a report", lambda: self.reporter.offer(self.report()))
                report_at = now + self.options.report_every_s
                self._tried("asking the servers", self._probe_all)
            if now >= forget_at:
                self._tried("forgetting old starts", self.starts.forget_old)
                forget_at = now + FORGET_EVERY_S
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()

    def end(self) -> None:
        """The servers stay. Returns at once: the look under way is the last, and it asks no server any more."""
        with self._asking_or_ending:
            self._ending.set()
            self._probes.shutdown(wait=False, cancel_futures=True)
        self._wake.set()

    def report(self) -> HostReport:
        self._seq += 1
        live = self.starts.live()
        return HostReport(
            host=self.options.name,
            address=self.options.address,
            agent_started_at=self.started_at,
            seq=self._seq,
            sent_at=time.time(),
            inventory=self.inventory.read(),
            gpus=self.inventory.read_gpus(live),
            servers=self.starts.observations(),
        )

    def _tried(self, what: str, part: Callable[[], object]) -> object:
        """None when it failed, which is logged."""
        try:
            return part()
        except Exception:
            logger.exception("%s failed", what)
            return None

    def _probe_all(self) -> None:
        for watched in self.starts.live():
            key, spec = (watched.start.server_id, watched.start.generation), watched.start.spec
            if spec is not None and watched.alive and key not in self._probing:
                self._ask(key, spec)

    def _ask(self, key: tuple[int, int], spec: LaunchSpec) -> None:
        with self._asking_or_ending:
            if not self._ending.is_set():
                self._probing.add(key)
                self._probes.submit(self._tried, f"asking {spec['name']}", partial(self._probe, key, spec))

    def _probe(self, key: tuple[int, int], spec: LaunchSpec) -> None:
        try:
            was_healthy = self.starts.is_healthy(*key)
            answer = probe(spec["address"], spec["api_port"])
            self.starts.take(*key, answer)
            if answer.healthy != was_healthy:
                self._wake.set()
        finally:
            self._probing.discard(key)

    def _held_gpus(self, spec: LaunchSpec) -> Cause | None:
        live = self.starts.live()
        return obstacles.held_gpus(spec, self.inventory.read_gpus(live), _names_by_pid(live))


def find_obstacle(spec: LaunchSpec, starts: Starts) -> Cause | None:
    return obstacles.leftovers(spec["name"], starts.strays(spec["server_id"])) or obstacles.taken_ports(spec)


def _names_by_pid(live: list[Watched]) -> dict[int, str]:
    return {pid: watched.start.spec["name"] for watched in live if watched.start.spec for pid in watched.group.pids}


_current: Agent | None = None


def current() -> Agent:
    if _current is None:
        raise RuntimeError("this process is not an agent: start one with manage.py agent")
    return _current


@contextmanager
def running(options: AgentOptions, reporter: Reporter) -> Iterator[Agent]:
    """The agent of this process, observing in a thread until the block ends. Raises StateDirInUse."""
    global _current
    agent = Agent(options, reporter)
    with agent.folder.owned():
        agent.starts.adopt()  # before the first task, which may be about what runs already
        _current = agent
        threads = [
            threading.Thread(target=agent.run, name="observe", daemon=True),
            threading.Thread(target=reporter.run, name="report", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield agent
        finally:
            agent.end()
            reporter.end()
            _wait_for(threads, END_LIMIT_S)
            _current = None


def _wait_for(threads: list[threading.Thread], limit_s: float) -> None:
    """What is being looked at, or sent, gets that long together: a broker or a disk may hang."""
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@app.task(name="agent.launch")
def launch(spec: LaunchSpec) -> None:
    current().launch(spec)


@app.task(name="agent.stop")
def stop(server_id: int, generation: int, drain_s: float) -> None:
    current().stop(server_id, generation, drain_s)


@app.task(name="agent.drill")
def drill(server_id: int, generation: int, who: str) -> None:
    current().drill(server_id, generation, who)


@app.task(name="agent.tail", ignore_result=False)
def tail_log(server_id: int, generation: int, max_bytes: int) -> LogTail:
    return current().tail(server_id, generation, max_bytes)


@app.task(name="agent.preflight", ignore_result=False)
def check_host(spec: LaunchSpec) -> list[Check]:
    return current().preflight(spec)
