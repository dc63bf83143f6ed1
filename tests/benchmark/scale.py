"""`make bench-scale`: one console in front of many hosts, each reporting as often as an agent does.

Valkey, worker, beat and web run as they do in `manage.py up`; one more process publishes the reports of all hosts. The
figures: CPU of the console's processes while one deployment page is open, how long the page of a deployment with all
servers takes, and how long until a server's death shows on the open page's socket.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
import psutil
import websockets

from console.embedded import EmbeddedValkey, free_port
from tests.benchmark.processes import ROOT, Running, take_precedence
from tests.benchmark.scale_reports import DEPLOYMENT

WARM_UP_S = 10.0
VIEWS = 15
DEATHS = 8
TARGETS = {"cpu_total": 0.5, "page_median_ms": 300.0, "change_worst_s": 2.0, "oldest_report_s": 4.0}
Figures = dict[str, float]


@dataclass(frozen=True)
class Console:
    """A running console. `processes` by name; `env` is what further ones of it need."""

    port: int
    env: dict[str, str]
    cookie: str
    processes: dict[str, Running | psutil.Process]

    def pids(self) -> list[int]:
        return [
            process.process.pid if isinstance(process, Running) else process.pid for process in self.processes.values()
        ]

    def cpu_s(self) -> dict[str, float]:
        return {name: _cpu_s(process) for name, process in self.processes.items()}


def _cpu_s(process: Running | psutil.Process) -> float:
    if isinstance(process, Running):
        return process.cpu_s()
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def console(counts: list[str], database_url: str, log: IO[bytes]) -> Iterator[Console]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        valkey = EmbeddedValkey(Path(folder), persistent=True)
        valkey.start()
        stack.callback(valkey.stop)
        assert valkey.process is not None
        env = {**os.environ, "DATA_DIR": folder, "REDIS_URL": valkey.url, "DATABASE_URL": database_url}
        seed = [sys.executable, "-m", "tests.benchmark.scale_rows", *counts]
        cookie = subprocess.run(seed, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True, text=True).stdout
        port = free_port()
        processes: dict[str, Running | psutil.Process] = {"valkey": psutil.Process(valkey.process.pid)}
        for name, argv in commands(port).items():
            started = Running([sys.executable, *argv], log, env)
            stack.callback(started.stop)
            processes[name] = started
        web = processes["web"]
        assert isinstance(web, Running)
        web.wait_for_port(port)
        yield Console(port, env, cookie, processes)


def commands(port: int) -> dict[str, list[str]]:
    """Those of `manage.py up`."""
    celery = ["-m", "celery", "-A", "console.celery"]
    worker = ["worker", "-n", "console@%h", "-P", "threads", "-c", "8", "-Q", "console,checks"]
    return {
        "web": ["manage.py", "web", "--host", "127.0.0.1", "--port", str(port)],
        "worker": [*celery, *worker, "--without-mingle", "--without-gossip"],
        "beat": [*celery, "beat", "--pidfile", ""],
    }


@contextmanager
def reporting(running: Console, counts: list[str]) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-m", "tests.benchmark.scale_reports", running.env["REDIS_URL"], "switchyard", *counts]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, cwd=ROOT, **pipes) as agents:
        assert agents.stdin is not None
        try:
            yield agents
        finally:
            agents.stdin.close()


def tell(agents: "subprocess.Popen[str]", line: str) -> float:
    """Unix time at which it was done."""
    assert agents.stdin is not None
    assert agents.stdout is not None
    agents.stdin.write(line + "\n")
    agents.stdin.flush()
    return float(agents.stdout.readline().split()[1])


async def measure(running: Console, agents: "subprocess.Popen[str]", seconds: float, servers: int) -> Figures:
    url = f"ws://127.0.0.1:{running.port}/ws/deployments/{DEPLOYMENT}/"
    headers = {"Cookie": running.cookie, "Origin": f"http://127.0.0.1:{running.port}"}
    async with websockets.connect(url, additional_headers=headers, max_size=None) as socket:
        await reading(socket, WARM_UP_S)
        before = running.cpu_s()
        began = time.monotonic()
        print("measuring", flush=True)
        await reading(socket, seconds)
        took = time.monotonic() - began
        used = {f"cpu_{name}": (after - before[name]) / took for name, after in running.cpu_s().items()}
        oldest_s = await asyncio.to_thread(oldest_heartbeat_s, running)
        delays = []
        for number in range(DEATHS):
            delays.append(await change(socket, agents, servers - number))
            print(f"a death was seen after {delays[-1]:.2f} s", flush=True)
    return {
        **used,
        "cpu_total": sum(used.values()),
        "oldest_report_s": oldest_s,
        "change_median_s": statistics.median(delays),
        "change_worst_s": max(delays),
    }


async def reading(socket: Any, seconds: float) -> None:
    """As a browser does, and forgets."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            await asyncio.wait_for(socket.recv(), left)
        except TimeoutError:
            return


async def change(socket: Any, agents: "subprocess.Popen[str]", server_id: int) -> float:
    """Seconds from a death in a host's report to the event that shows it."""
    asked = asyncio.to_thread(tell, agents, f"kill {server_id}")
    killed_at = await asked
    while True:
        frame = json.loads(await asyncio.wait_for(socket.recv(), 30))
        for event in frame.get("events", []):
            if (
                event["type"] == "server"
                and event["server"]["id"] == server_id
                and event["server"]["state"] == "failed"
            ):
                return time.time() - killed_at


def oldest_heartbeat_s(running: Console) -> float:
    """Of all hosts. Near the time between two reports: the console keeps up with them."""
    name, _, value = running.cookie.partition("=")
    with httpx.Client(cookies={name: value}, trust_env=False, timeout=60) as client:
        found = client.get(f"http://127.0.0.1:{running.port}/api/hosts", params={"limit": 500}).json()
    return float(max(host["heartbeat_age_s"] for host in found["items"]))


def page_times(running: Console) -> Figures:
    """By the clock of the client beside it, which is an upper bound of the server's own time."""
    url = f"http://127.0.0.1:{running.port}/deployments/{DEPLOYMENT}/"
    name, _, value = running.cookie.partition("=")
    times = []
    with httpx.Client(cookies={name: value}, trust_env=False, timeout=60) as client:
        client.get(url).raise_for_status()
        before = _cpu_s(running.processes["web"])
        for _ in range(VIEWS):
            began = time.monotonic()
            client.get(url).raise_for_status()
            times.append(1000 * (time.monotonic() - began))
            print(f"a page took {times[-1]:.0f} ms", flush=True)
        used_ms = 1000 * (_cpu_s(running.processes["web"]) - before) / VIEWS
    return {"page_median_ms": statistics.median(times), "page_worst_ms": max(times), "page_cpu_ms": used_ms}


def table(figures: Figures) -> str:
    def line(name: str, value: float) -> str:
        target = (
            f"   target {TARGETS[name]:g}: {'met' if value <= TARGETS[name] else 'MISSED'}" if name in TARGETS else ""
        )
        return f"{name:18}{value:10.3f}{target}"

    return "\n".join(line(name, value) for name, value in figures.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--servers", type=int, default=2, help="of each host")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--database", default="", help="address of an empty PostgreSQL database; SQLite without it")
    parser.add_argument("--precedence", action="store_true", help="over other work of a busy machine; needs root")
    args = parser.parse_args()
    counts = [str(args.hosts), str(args.gpus), str(args.servers)]
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    with (
        (out / "scale.log").open("wb") as log,
        console(counts, args.database, log) as running,
        reporting(running, counts) as agents,
    ):
        assert agents.stdout is not None
        agents.stdout.readline()
        if args.precedence:
            take_precedence([os.getpid(), agents.pid, *running.pids()])
        figures = asyncio.run(measure(running, agents, args.seconds, args.hosts * args.servers))
        figures |= page_times(running)
    (out / "scale.json").write_text(json.dumps(figures, indent=2))
    load = f"{args.hosts} hosts, {args.hosts * args.gpus} GPUs, {args.hosts * args.servers} servers"
    print(f"{load}, {'PostgreSQL' if args.database else 'SQLite'}; CPU in cores\n{table(figures)}")


if __name__ == "__main__":
    main()
