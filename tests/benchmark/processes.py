"""Starting, measuring and ending the processes of a benchmark."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import psutil

from console.embedded import free_port
from tests.benchmark.load import LoadResult

ROOT = Path(__file__).resolve().parent.parent.parent
START_LIMIT_S = 60.0
OPEN_FILES = 20_000
BEFORE_ALL = -19
AFTER_ALL = 19


def allow_many_connections() -> None:
    """For this process and what it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def take_precedence(processes: Iterable[int]) -> None:
    """Over all else that runs on this machine, which then does not count. Needs root."""
    for pid in processes:
        set_niceness(pid, BEFORE_ALL)


def set_niceness(pid: int, niceness: int) -> None:
    """Of a process and its session: that is a group of its own to the scheduler, whose niceness is what counts."""
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(niceness))


class Running:
    """A started process with everything that it starts."""

    def __init__(self, argv: list[str], log: IO[bytes], env: Mapping[str, str] | None = None) -> None:
        self.name = Path(argv[0]).name
        self.process = subprocess.Popen(
            argv, cwd=ROOT, env=dict(env or os.environ), stdout=log, stderr=log, start_new_session=True
        )

    def wait_for_port(self, port: int) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended with exit code {self.process.returncode}; see out/bench.log")
            with socket.socket() as probe:
                probe.settimeout(0.5)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise SystemExit(f"{self.name} did not listen on port {port} within {START_LIMIT_S:.0f} s; see out/bench.log")

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def cpu_s(self) -> float:
        """User and system time so far."""
        return sum(times.user + times.system for times in (process.cpu_times() for process in self._tree()))

    def resident_bytes(self) -> int:
        """Of all its processes; what they share is counted once."""
        return sum(process.memory_full_info().pss for process in self._tree())

    def stop(self) -> None:
        members = self._tree() if self.process.poll() is None else []
        for process in members:
            process.terminate()
        for process in psutil.wait_procs(members, timeout=8)[1]:
            process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(argv: list[str], log: IO[bytes], port: int, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Runs `argv` for the block; it listens on `port` when the block begins."""
    process = Running(argv, log, env)
    try:
        process.wait_for_port(port)
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def mock_engines(log: IO[bytes], tokens: int, gap_ms: float) -> Iterator[tuple[str, str]]:
    """URLs of a prefill and a decode server."""
    with contextlib.ExitStack() as stack:
        ports = [free_port(), free_port()]
        for port in ports:
            argv = [sys.executable, "-m", "tests.benchmark.mock_engine", str(port)]
            stack.enter_context(running([*argv, "--tokens", str(tokens), "--gap-ms", str(gap_ms)], log, port))
        yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"


def load_argv(port: int, concurrency: int) -> list[str]:
    return [sys.executable, "-m", "tests.benchmark.load", str(port), "--concurrency", str(concurrency)]


def apply_load(port: int, requests: int, concurrency: int, spread_s: float = 0.0) -> LoadResult:
    argv = [*load_argv(port, concurrency), "--requests", str(requests), "--spread-s", str(spread_s)]
    finished = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    result: LoadResult = json.loads(finished.stdout)
    return result


@contextlib.contextmanager
def held_streams(port: int, count: int) -> Iterator[None]:
    """`count` open streams, each with its first token received, for the block."""
    argv = [*load_argv(port, count), "--hold"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"open\n":
            raise SystemExit(f"{count} streams could not be opened at once")
        try:
            yield
        finally:
            holder.communicate(b"\n")
