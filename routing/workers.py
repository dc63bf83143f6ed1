"""Several worker processes of one router on one port.

The parent forks them when all is imported and does nothing then but watch: it starts a worker again that died, passes
on the signal to end, kills one whose event loop stands still, and waits. When it is killed itself, the workers see the
end of a pipe and leave as if asked to.

Every worker has its own event loop, connections to servers, circuits and retry budget. They choose by the loads of all
of them and know each other's sessions, prompts and stored responses (`routing.shared`); `/metrics` of any is the sum
(`routing.colleagues`).
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

import uvicorn
import uvicorn.lifespan.on
import uvicorn.loops.uvloop  # uvicorn would load both later, and each worker a copy of its own.

from routing.colleagues import Inbox, make_inboxes
from routing.kept import Kept
from routing.listening import Port
from routing.shared import Seat, Shared, shared_words

logger = logging.getLogger(__name__)
USABLE_CORES = len(os.sched_getaffinity(0))
DEFAULT_WORKERS = min(2, USABLE_CORES)
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
"""Before a worker is started that died young; doubled from the first to the longest."""
YOUNG_S = 10.0
OVERTIME_S = 5.0
"""How much longer than it may take to end a worker is waited for before it is killed."""
BEAT_S = 0.5
"""How often a worker shows that its event loop turns."""
DEFAULT_STUCK_S = 30.0
LOOKS = 6
"""In a row that must find a worker unmoved. They are counted, not the time between them: when the whole machine stood
still, no worker is to blame."""
ASKED_TO_END = (signal.SIGINT, signal.SIGTERM)
WATCHED = (signal.SIGCHLD, *ASKED_TO_END)


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker process is given."""

    number: int
    """From 0."""
    seat: Seat
    inboxes: Sequence[Inbox]
    kept: Kept
    parent: int
    """A descriptor that ends when the parent does."""
    pulses: "memoryview[int]"
    """One word per worker, in which it counts; the parent reads them."""
    sockets: list[socket.socket]


class WorkerServer(uvicorn.Server):
    """Ends when it is asked to, or its parent is gone. How often it is asked makes no difference: at a terminal the
    signal comes from there and from the parent, and it is the parent who kills."""

    def __init__(self, config: uvicorn.Config, place: Place) -> None:
        super().__init__(config)
        self._place = place

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().add_reader(self._place.parent, self._parent_gone)
        self._beat()
        await super().startup(sockets)

    def _beat(self) -> None:
        self._place.pulses[self._place.number] += 1
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _parent_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._place.parent)
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True


@dataclass(slots=True)
class Worker:
    """A worker as its parent sees it."""

    number: int
    pid: int | None = None
    started_at: float = 0.0
    pause_s: float = 0.0
    start_at: float = 0.0
    """When it is to be started, while it does not run."""
    pulse: int = 0
    unmoved: int = 0
    """Looks in a row that found it so."""


class Parent:
    """Makes what the workers share, and keeps them running. Makes no thread, for a fork would not take it along."""

    def __init__(
        self,
        count: int,
        server_ids: Sequence[str],
        port: Port,
        serve: Callable[[Place], None],
        *,
        shutdown_s: float,
        stuck_s: float,
    ) -> None:
        """`serve` runs in the worker; it returns when that is to end, which may take `shutdown_s`. A worker whose event
        loop stands still for `stuck_s` is killed."""
        self._workers = [Worker(number) for number in range(count)]
        self._shared = Shared(server_ids, count)
        self._inboxes = make_inboxes(count)
        self._kept = Kept(count)
        self._port = port
        self._serve = serve
        self._shutdown_s = shutdown_s
        self._pulses = shared_words(count)
        self._look_every_s = stuck_s / LOOKS
        self._look_at = time.monotonic() + self._look_every_s
        self._life, self._my_life = os.pipe()
        self._mask: set[signal.Signals] = set()
        self._kill_at: float | None = None
        """Set when workers were asked to end: when those are killed that have not."""
        self._status = 0

    def run(self) -> int:
        """The exit status: 0 when it was asked to end and all workers have."""
        self._mask = {signal.Signals(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        while self._kill_at is None or self._running():
            self._start_due()
            caught = signal.sigtimedwait(WATCHED, self._wait_s())
            # Python gives whatever is in memory when the process was stopped, continued, and its time was over.
            if caught is not None and caught.si_signo in ASKED_TO_END:
                self._end(signal.Signals(caught.si_signo))
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            self._bury()
            self._look()
        return self._status

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.pid is not None]

    def _wait_s(self) -> float:
        now = time.monotonic()
        moments = [worker.start_at for worker in self._workers if worker.pid is None and self._kill_at is None]
        moments.append(self._look_at if self._kill_at is None else self._kill_at)
        return max(0.0, min(moments) - now)

    def _look(self) -> None:
        if self._kill_at is not None or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self._look_every_s
        for worker in self._running():
            pulse = self._pulses[worker.number]
            worker.unmoved = worker.unmoved + 1 if pulse == worker.pulse else 0
            worker.pulse = pulse
            if worker.unmoved >= LOOKS:
                assert worker.pid is not None
                stood_s = LOOKS * self._look_every_s
                logger.error("worker %d (process %d) stood still for %g s", worker.number + 1, worker.pid, stood_s)
                os.kill(worker.pid, signal.SIGKILL)

    # Starting

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.pid is None and self._kill_at is None and worker.start_at <= now:
                self._start(worker)

    def _start(self, worker: Worker) -> None:
        worker.started_at, worker.unmoved = time.monotonic(), 0
        self._shared.clear(worker.number)
        try:
            worker.pid = os.fork()
        except OSError as error:
            self._try_later(worker, f"cannot be started: {error}")
            return
        if worker.pid == 0:
            self._be(worker.number)

    def _be(self, number: int) -> None:
        """In the new process, which ends here."""
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            os.close(self._my_life)
            sockets = self._port.sockets()
            self._port.close()
            seat = self._shared.seat(number)
            self._serve(Place(number, seat, self._inboxes, self._kept, self._life, self._pulses, sockets))
            status = 0
        except SystemExit as leaving:
            if isinstance(leaving.code, int):
                status = leaving.code
            else:
                logger.error("worker %d: %s", number + 1, leaving.code)
        except BaseException:
            logger.exception("worker %d broke", number + 1)
        finally:
            os._exit(status)

    def _try_later(self, worker: Worker, why: str) -> None:
        now = time.monotonic()
        is_young = now - worker.started_at < YOUNG_S
        worker.pause_s = min(max(FIRST_PAUSE_S, 2 * worker.pause_s), LONGEST_PAUSE_S) if is_young else 0.0
        worker.start_at = now + worker.pause_s
        logger.error("worker %d %s; starting it again in %.1f s", worker.number + 1, why, worker.pause_s)

    # Ending

    def _bury(self) -> None:
        for worker in self._running():
            assert worker.pid is not None
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            worker.pid = None
            if self._kill_at is None:
                self._try_later(worker, f"(process {pid}) {in_words(os.waitstatus_to_exitcode(status))}")

    def _end(self, asked: signal.Signals) -> None:
        """The first time workers end their streams; the second time they are killed."""
        if self._kill_at is not None:
            self._status = 128 + asked
            self._kill()
            return
        self._kill_at = time.monotonic() + self._shutdown_s + OVERTIME_S
        for worker in self._running():
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGTERM)

    def _kill(self) -> None:
        self._kill_at = time.monotonic() + OVERTIME_S
        self._status = self._status or 1
        for worker in self._running():
            assert worker.pid is not None
            logger.error("worker %d (process %d) did not end in time and is killed", worker.number + 1, worker.pid)
            os.kill(worker.pid, signal.SIGKILL)


def in_words(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with status {exit_code}"
    return f"was ended by {signal.Signals(-exit_code).name}"
