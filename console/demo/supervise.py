"""Keeps the processes of a local Switchyard running, and ends all of them in time.

Not honcho, which runs everything through a shell, doubles every process, and ends all when one dies: a console that
somebody uses starts its dead parts again.
"""

import fcntl
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from console.demo.children import Child, ChildSpec, end_leftovers, kill_groups

POLL_S = 0.2
LIVED_WELL_S = 30.0
"""A child that lived this long starts again with a clean record, and at once."""
LONGEST_WAIT_S = 10.0
GIVE_UP_AFTER = 6
TERM_WAIT_S = 3.0
LAST_WAIT_S = 1.5

Say = Callable[[str], None]


def say(text: str) -> None:
    """At once, also into a pipe or a file: somebody waits for the line."""
    print(text, flush=True)


class StopAsked(Exception):
    """Somebody pressed Ctrl-C or sent SIGTERM."""


class CannotRun(Exception):
    """The run is over before it was asked to end. The message is for the person at the terminal."""


class Guests(Protocol):
    """Processes that are not children, yet end with the run: the servers that a demo's agent started."""

    def ask_to_end(self) -> None: ...

    def end(self) -> None:
        """By force what has not obeyed, and what was started in between."""


class Supervisor:
    """One run in one data folder. A context manager: however its block is left, every child is ended, within 10 s.

    Children started with `ends_last` (the broker that the others still need) end after all others.
    """

    def __init__(self, data_dir: Path, say: Say, guests: Guests | None = None) -> None:
        self.data_dir, self.say, self.guests = data_dir, say, guests
        self.children: dict[str, Child] = {}
        self.last: set[str] = set()
        self.stop_asked = False
        self._failures: dict[str, int] = {}
        self._again_at: dict[str, float] = {}
        self._lock: IO[str] | None = None

    def __enter__(self) -> "Supervisor":
        self._take_the_folder()
        self._listen_for_signals()
        if found := end_leftovers(self.data_dir):
            self.say(f"Ended what an earlier run had left: {', '.join(found)}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._lock is not None:
            self._lock.close()

    def _take_the_folder(self) -> None:
        """One supervisor per data folder; the kernel lets go of the lock however we end."""
        run = self.data_dir / "run"
        run.mkdir(parents=True, exist_ok=True)
        self._lock = (run / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise CannotRun(
                f"A Switchyard already runs with the data folder {self.data_dir}. Stop it first, or give this one "
                "a folder and a port of its own: DATA_DIR=… PORT=…"
            ) from error

    def _listen_for_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            is_shielded = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN  # nohup
            if not is_shielded:
                signal.signal(number, self._note_stop)

    def _note_stop(self, number: int, frame: object) -> None:
        self.stop_asked = True

    def start(self, spec: ChildSpec, ends_last: bool = False) -> None:
        self.children[spec.name] = Child(spec, self.data_dir)
        if ends_last:
            self.last.add(spec.name)

    def pause(self, seconds: float) -> None:
        """Watches the children meanwhile. Raises StopAsked, CannotRun."""
        deadline = time.monotonic() + seconds
        while True:
            if self.stop_asked:
                raise StopAsked
            self.watch()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(POLL_S, left_s))

    def run_forever(self) -> None:
        """Returns by StopAsked or CannotRun only."""
        while True:
            self.pause(60)

    def run_to_end(self, spec: ChildSpec) -> Child:
        """Runs a child that is meant to end, while the others are watched. Raises StopAsked, CannotRun."""
        child = Child(spec, self.data_dir)
        try:
            while child.exit_code is None:
                self.pause(POLL_S)
        finally:
            end_all([child], wait_s=0.0)
        return child

    def watch(self) -> None:
        """Starts again whatever has ended, later and later while it keeps ending. Raises CannotRun."""
        for name, child in list(self.children.items()):
            if child.exit_code is None:
                continue
            if name not in self._again_at:
                self._note_death(child)
            elif time.monotonic() >= self._again_at[name]:
                del self._again_at[name]
                self.children[name] = Child(child.spec, self.data_dir)

    def _note_death(self, child: Child) -> None:
        child.signal(signal.SIGKILL)  # what it may have started in its group
        failures = 0 if child.age_s > LIVED_WELL_S else self._failures.get(child.name, 0) + 1
        if failures >= GIVE_UP_AFTER:
            raise CannotRun(
                f"{child.name} ended {failures} times in a row, {_in_words(child.exit_code)}. "
                f"The end of its log, {child.log}:\n{child.last_lines()}"
            )
        wait_s = min(LONGEST_WAIT_S, 0.25 * 2**failures) if failures else 0.0
        self._failures[child.name], self._again_at[child.name] = failures, time.monotonic() + wait_s
        self.say(f"{child.name} ended, {_in_words(child.exit_code)}; it starts again. Its log: {child.log}")

    def stop(self) -> None:
        """Ends guests and children at the same time, the last children after all others."""
        first = [child for name, child in self.children.items() if name not in self.last]
        ask_to_end(first)
        if self.guests is not None:
            self.guests.ask_to_end()
        end_all(first, TERM_WAIT_S)
        if self.guests is not None:
            self.guests.end()
        last = [self.children[name] for name in self.last]
        ask_to_end(last)
        end_all(last, LAST_WAIT_S)
        self.children, self.last = {}, set()


def ask_to_end(children: list[Child]) -> None:
    for child in children:
        child.signal(signal.SIGTERM)


def end_all(children: list[Child], wait_s: float) -> None:
    """A while to obey what they were asked, then SIGKILL to whatever is left in their groups."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline and any(child.exit_code is None for child in children):
        time.sleep(0.05)
    kill_groups(child.process.pid for child in children)
    for child in children:
        child.process.wait()
        child.forget()


def _in_words(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"with exit code {exit_code}"
