"""A router of several workers as processes of their own, and clients that know which worker serves them."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.own import held_port
from tests.routing.scripted import Client, Engine, Script, lists, until
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]


@dataclass
class Crew:
    process: asyncio.subprocess.Process
    port: int
    _clients: list[Client] = field(default_factory=list)

    def workers(self) -> list[int]:
        """Their process ids."""
        return sorted(child.pid for child in psutil.Process(self.process.pid).children())

    async def connect(self, count: int = 1) -> dict[Client, int]:
        """So many clients, each with the worker that serves it."""
        clients = [await Client(self.port).__aenter__() for _ in range(count)]
        self._clients += clients
        locals_ = {client: client.writer.get_extra_info("sockname")[1] for client in clients}
        served: dict[int, int] = {}

        def all_are_served() -> bool:  # Until then some wait to be accepted.
            served.update((one.raddr[1], pid) for pid in self.workers() for one in connections(pid) if one.raddr)
            return served.keys() >= set(locals_.values())

        await until(all_are_served)
        return {client: served[local] for client, local in locals_.items()}

    async def at(self, worker: int) -> Client:
        """A client that this worker serves, until the end. Connections are spread by lot, so it takes some."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                [(client, serves)] = (await self.connect()).items()
                if serves == worker:
                    return client
                client.writer.close()

    async def one_client_each(self) -> list[Client]:
        return [await self.at(worker) for worker in self.workers()]

    async def all_serve(self, workers: int) -> None:
        """Returns when so many listen."""
        await until(lambda: sum(map(listens, self.workers() or [self.process.pid])) == workers)

    def close_clients(self) -> None:
        for client in self._clients:
            client.writer.close()

    def send(self, asked: signal.Signals) -> None:
        self.process.send_signal(asked)

    async def end(self) -> int:
        """Its exit status."""
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


def connections(pid: int) -> list[Any]:
    try:
        return list(psutil.Process(pid).net_connections("tcp"))
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # The second of one that is ending, unless asked by root.
        return []


def listens(pid: int) -> bool:
    return any(one.status == psutil.CONN_LISTEN for one in connections(pid))


def command(port: int, *args: str, workers: int = 2) -> list[str]:
    return [sys.executable, "-m", "routing", "--port", str(port), "--workers", str(workers), *args]


@asynccontextmanager
async def crew(*args: str, workers: int = 2) -> AsyncIterator[Crew]:
    """When it begins every worker listens; when it ends no process is left."""
    with held_port() as port:
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


async def metrics_of_all(client: Client) -> str:
    """`/metrics` once no worker is too slow to give its part in time."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            await client.send("GET", "/metrics")
            text = (await client.answer()).body.decode()
            found = read_figures(text)
            if found.get("switchyard_router_workers_answered") == found.get("switchyard_router_workers"):
                return text


def read_figures(text: str) -> dict[str, float]:
    """By name and labels as they are written."""
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


async def figures(port: int) -> dict[str, float]:
    """`/metrics` of all workers."""
    async with Client(port) as client:
        return read_figures(await metrics_of_all(client))
