"""A running Switchyard for tests: worker, beat, agents and web as processes of their own, over a database in a file.

The test itself acts through the domain on that same database and broker, as the pages and the REST API do.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.utils import ConnectionHandler

from console.fleet import actions
from console.fleet.models import Deployment, Host, Move, Pair, Server
from console.fleet.states import PairState, ServerState
from console.settings import database as database_settings
from tests import own
from tests.factories import ADMIN, OPERATOR
from tests.waiting import LIMIT_S, wait_for, wait_until

ROOT = Path(__file__).resolve().parents[2]
PORTS_EACH = 250
PORTS_OF_HOSTS = {"gpu01": (0, 124), "gpu02": (125, 186), "gpu03": (187, 249)}
"""First and last of each host, out of the ports of this test process: the first one has most of the servers."""
QUICK_ENGINE = {"SIMULATOR_START_S": "0.5", "SIMULATOR_STOP_S": "0.1", "SIMULATOR_SPEED": "10"}
MARKER = "TEST_INSTALLATION"
"""In the environment of everything started here, so that nothing is left behind and nothing else is touched."""


class Installation:
    """Processes by name. Whatever one starts is ended with the test, servers included."""

    def __init__(self, folder: Path, database_url: str = "") -> None:
        """Without `database_url` over SQLite in its folder."""
        self.folder, self.database_url = folder, database_url
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.web_port = own.free_port()
        self._gpu = 0
        self._first_port = 24000 + own.number(32) * PORTS_EACH
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DATABASE", "PYTEST"))},
            "DATA_DIR": str(folder),
            "SECRET_KEY": settings.SECRET_KEY,  # a login that the test makes counts for the pages
            "DATABASE_URL": database_url,
            "REDIS_URL": settings.REDIS_URL,
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "AGENT_REPORT_EVERY_S": "0.5",
            "HOST_UNREACHABLE_AFTER_S": "4",
            "TICK_EVERY_S": "0.25",
            "BROKER_VISIBILITY_TIMEOUT_S": "10",
            MARKER: str(folder),
        }

    @property
    def database(self) -> dict[str, Any]:
        """As Django's settings take it."""
        if self.database_url:
            return database_settings(self.database_url)
        return {**connections.settings["default"], "NAME": str(self.folder / "switchyard.sqlite3")}

    def next_gpu(self) -> int:
        """Of gpu01; each test takes its own."""
        self._gpu += 1
        return self._gpu - 1

    def run(self, name: str, *argv: str, inside: Sequence[str] = (), **env: str) -> None:
        """`inside`: what comes before the command to run it elsewhere, in a network namespace."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*inside, sys.executable, *argv],
                cwd=ROOT, env={**self.env, **env}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def run_worker(self, name: str = "worker") -> None:
        self.run(
            name,
            *("-m", "celery", "-A", "console.celery", "worker", "-P", "threads", "-c", "4", "-Q", "console,checks"),
            *("-n", f"{name}@test", "--without-mingle", "--without-gossip", "--without-heartbeat"),
        )

    def run_beat(self) -> None:
        self.run("beat", "-m", "celery", "-A", "console.celery", "beat")

    def run_agent(
        self, host: str = "gpu01", gpus: int = 4, address: str = "127.0.0.1", inside: Sequence[str] = (), **env: str
    ) -> None:
        first, last = (self._first_port + offset for offset in PORTS_OF_HOSTS[host])
        self.run(
            host,
            *("manage.py", "agent", "--name", host, "--address", address, "--simulate-gpus", str(gpus)),
            *("--port-range", f"{first}-{last}"),
            inside=inside,
            **env,
        )

    def run_web(self) -> None:
        self.run("web", "manage.py", "web", "--port", str(self.web_port))

    def kill(self, name: str) -> None:
        """SIGKILL to the process and its group; what it started in sessions of their own lives on."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def pause(self, name: str) -> None:
        """Returns when it stands still, and outside of any transaction, in which it would hold up everybody else."""

        def stands_between_two_transactions() -> bool:
            os.killpg(self.processes[name].pid, signal.SIGSTOP)
            wait_until(lambda: _stands_still(self.processes[name].pid), f"{name} to stand still")
            if self._can_be_written():
                return True
            self.resume(name)
            return False

        wait_until(stands_between_two_transactions, f"{name} to pause between two transactions")

    def resume(self, name: str) -> None:
        os.killpg(self.processes[name].pid, signal.SIGCONT)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        while left := self.left_behind():
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1)

    def left_behind(self) -> list[psutil.Process]:
        """Every process that carries our marker."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARKER) == str(self.folder):
                    found.append(process)
        return found

    def engines(self, server: Server) -> list[psutil.Process]:
        """The main processes of a server, found by its port on their command line, whatever the console believes."""
        fresh = Server.objects.get(pk=server.pk)
        parents: dict[psutil.Process, int] = {}
        for process in self.left_behind():
            with suppress(psutil.Error):
                words = process.cmdline()
                if "--port" in words and words[words.index("--port") + 1] == str(fresh.api_port):
                    parents[process] = process.ppid()
        pids = {process.pid for process in parents}
        return [process for process, parent in parents.items() if parent not in pids]

    def _can_be_written(self) -> bool:
        """Nobody holds the lock of SQLite's file; in PostgreSQL nobody holds up everybody."""
        if self.database_url:
            return True
        try:
            with closing(sqlite3.connect(self.database["NAME"], timeout=0)) as connection:
                connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


def _stands_still(pid: int) -> bool:
    """All of its threads: the signal reaches them one after the other."""
    tasks = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all("\nState:\tT" in status for status in tasks)


@contextmanager
def database_in(database: dict[str, Any], blocker: Any) -> Iterator[None]:
    """Until the block ends, the test's own ORM works on the database that the processes use, in all its threads."""
    usual, usual_settings = connections["default"], connections.settings["default"]
    theirs = ConnectionHandler({"default": database})
    with blocker.unblock():
        connections.settings["default"] = theirs.settings["default"]
        connections["default"] = theirs.create_connection("default")
        try:
            call_command("migrate", verbosity=0)
            yield
        finally:
            connections["default"].close()
            connections["default"] = usual
            connections.settings["default"] = usual_settings


def make_deployment(**engine_env: str) -> Deployment:
    name = f"chat{Deployment.objects.count()}"
    return actions.create_deployment(
        ADMIN,
        {
            "name": name,
            "model": "example/tiny",
            "served_model_name": name,
            "engine": "simulated",
            "engine_env": {**QUICK_ENGINE, **engine_env},
            "require_key": False,
        },
    )


def add_server(deployment: Deployment, role: str, gpu: int, host: str = "gpu01") -> Server:
    found = wait_for(lambda: Host.objects.filter(name=host, gpus__index=gpu).first(), f"host {host}")
    return actions.add_server(OPERATOR, deployment_id=deployment.pk, host_id=found.pk, role=role, gpu_indexes=[gpu])


def state_of(server: Server) -> str:
    return Server.objects.get(pk=server.pk).state


def wait_for_state(server: Server, state: ServerState, patience_s: float = LIMIT_S) -> Server:
    """Gives up at once when it fails instead."""

    def reached() -> Server | None:
        fresh = Server.objects.get(pk=server.pk)
        if fresh.state == ServerState.FAILED != state:
            raise AssertionError(f"{fresh.name} failed on its way to {state}: {fresh.failure}")
        return fresh if fresh.state == state else None

    found: Server = wait_for(reached, f"{server.name} to be {state}", patience_s)
    return found


GPUS = 32
"""More than the tests of any module take."""


@contextmanager
def installed(folders: pytest.TempPathFactory, blocker: Any, database_url: str = "") -> Iterator[Installation]:
    """Worker, beat and router, in front of no host yet."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.flushdb()
    installation = Installation(folders.mktemp("installation"), database_url)
    with database_in(installation.database, blocker):
        try:
            installation.run_worker()
            installation.run_beat()
            installation.run_web()
            yield installation
        finally:
            installation.end()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Installation]:
    """Worker, beat, router and one host with many simulated GPUs, shared by the tests of a module."""
    with installed(tmp_path_factory, django_db_blocker) as installation:
        installation.run_agent(gpus=GPUS)
        yield installation


def start_pair(running: Installation, **engine_env: str) -> tuple[Server, Server]:
    """A prefill and a decode server of a new deployment, ready and verified with each other."""
    deployment = make_deployment(**engine_env)
    prefill = add_server(deployment, "prefill", running.next_gpu())
    decode = add_server(deployment, "decode", running.next_gpu())
    for server in (prefill, decode):
        actions.start(server.pk, OPERATOR)
    for server in (prefill, decode):
        wait_for_state(server, ServerState.READY)
    wait_for_pair(prefill, decode)
    return prefill, decode


def wait_for_pair(prefill: Server, decode: Server) -> Pair:
    """Verified, by their present starts."""

    def verified() -> Pair | None:
        pair = Pair.objects.filter(prefill=prefill, decode=decode, state=PairState.VERIFIED).first()
        return pair if pair and pair.is_current else None

    found: Pair = wait_for(verified, "a verified pair")
    return found


def wait_for_end(move: Move) -> Move:
    def ended() -> Move | None:
        fresh = Move.objects.get(pk=move.pk)
        return None if fresh.is_open else fresh

    found: Move = wait_for(ended, "the move to end")
    return found
