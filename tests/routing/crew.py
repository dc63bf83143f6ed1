"""A router of several workers as processes of their own, and clients that know which worker serves them."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from console.embedded import free_port
from tests.routing.scripted import Client, Engine, Script, ask, lists, until

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 30.0


@dataclass
class Crew:
    process: asyncio.subprocess.Process
    port: int
    _clients: list[Client] = field(default_factory=list)

    def workers(self) -> list[int]:
        """Their process ids."""
        return sorted(child.pid for child in psutil.Process(self.process.pid).children())

    def worker_of(self, client: Client) -> int | None:
        """None while the connection waits to be accepted."""
        local = client.writer.get_extra_info("sockname")[1]
        for pid in self.workers():
            if any(one.raddr and one.raddr[1] == local for one in connections(pid)):
                return pid
        return None

    async def at(self, worker: int) -> Client:
        """A client that this worker serves, until the end. Connections are spread by lot, so it takes some."""
        async with asyncio.timeout(START_LIMIT_S):
            while True:
                client = await Client(self.port).__aenter__()
                self._clients.append(client)
                await until(partial(self.worker_of, client))
                if self.worker_of(client) == worker:
                    return client
                client.writer.close()

    async def one_client_each(self) -> list[Client]:
        return [await self.at(worker) for worker in self.workers()]

    async def all_serve(self, workers: int) -> None:
        """Returns when so many listen."""
        await until(lambda: sum(map(listens, self.workers() or [self.process.pid])) == workers, START_LIMIT_S)

    def close_clients(self) -> None:
        for client in self._clients:
            client.writer.close()

    def send(self, asked: signal.Signals) -> None:
        self.process.send_signal(asked)

    async def end(self) -> int:
        """Its exit status."""
        async with asyncio.timeout(START_LIMIT_S):
            return await self.process.wait()


def connections(pid: int) -> list[Any]:
    try:
        return list(psutil.Process(pid).net_connections("tcp"))
    except psutil.NoSuchProcess:
        return []


def listens(pid: int) -> bool:
    return any(one.status == psutil.CONN_LISTEN for one in connections(pid))


def command(port: int, *args: str, workers: int = 2) -> list[str]:
    return [sys.executable, "-m", "routing", "--port", str(port), "--workers", str(workers), *args]


@asynccontextmanager
async def crew(*args: str, workers: int = 2) -> AsyncIterator[Crew]:
    """When it begins every worker listens; when it ends no process is left."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(*command(port, *args, workers=workers), cwd=ROOT)
    made = Crew(process, port)
    try:
        await made.all_serve(workers)
        yield made
    finally:
        made.close_clients()
        if process.returncode is None:
            left = made.workers()
            process.kill()
            await process.wait()
            for pid in left:
                kill(pid)


def is_running(pid: int) -> bool:
    """Not one that has ended and that nobody has asked about yet, either."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    try:
        psutil.Process(pid).kill()
    except psutil.NoSuchProcess:
        return


@asynccontextmanager
async def crew_before(
    scripts: dict[str, Script], *args: str, workers: int = 2
) -> AsyncIterator[tuple[Crew, dict[str, Engine]]]:
    """Workers in front of scripted servers named P…, D…, N… for their roles, all of model `m`."""
    engines = {name: Engine(lists(script), name) for name, script in scripts.items()}
    roles = {"P": "--prefill", "D": "--decode", "N": "--plain"}
    named: list[str] = ["--model", "m"]
    for name, engine in engines.items():
        await engine.start()
        named += [roles[name[0]], engine.url]
    try:
        async with crew(*named, *args, workers=workers) as made:
            yield made, engines
    finally:
        for engine in engines.values():
            await engine.stop()


async def figures(port: int) -> dict[str, float]:
    """`/metrics`, by name and labels as they are written."""
    text = (await ask(port, "GET", "/metrics")).body.decode()
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}
