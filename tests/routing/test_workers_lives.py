"""Worker processes begin, die and end together, and clients notice as little of it as can be."""

import asyncio
import signal
import subprocess
from collections.abc import Callable

import psutil
import pytest

from tests.own import held_port
from tests.routing.crew import ROOT, Crew, command, crew, crew_before, is_running
from tests.routing.scripted import Client, Seen, Wire, ask, chat_body, chat_chunk, streams, until
from tests.waiting import LIMIT_S

NOBODY = ("--plain", "http://127.0.0.1:9", "--model", "m")


class Held:
    """A server whose streams wait after their first token until `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, seen: Seen, wire: Wire) -> None:
        await wire.start_stream()
        await wire.event(chat_chunk({"content": "a"}))
        await self.go.wait()
        await wire.event(chat_chunk({"content": "b"}, "stop"))
        await wire.end_stream()


async def begin(client: Client) -> None:
    """A stream that has given its first token."""
    await client.chat(stream=True)
    assert (await client.head())[0] == 200
    await client.chunk()


async def rest(client: Client) -> bytes:
    parts = b""
    async with asyncio.timeout(LIMIT_S):
        while part := await client.chunk():
            parts += part
    return parts


@pytest.mark.parametrize("lose", [psutil.Process.kill, psutil.Process.suspend], ids=["dies", "stands still"])
async def test_a_worker_that_is_lost_is_replaced_while_streams_of_the_others_run_on(
    lose: Callable[[psutil.Process], None],
) -> None:
    held = Held()
    async with crew_before({"N1": held}, "--stuck-timeout", "3") as (made, _):
        lost, left = made.workers()
        stream = await made.at(left)
        await begin(stream)
        lose(psutil.Process(lost))
        await until(lambda: lost not in made.workers())
        await made.all_serve(2)
        assert left in made.workers()
        for client in await made.one_client_each():
            await client.chat(stream=True)
            assert (await client.head())[0] == 200
        held.go.set()
        assert b"[DONE]" in await rest(stream)


async def test_a_router_that_stood_still_as_a_whole_keeps_its_workers() -> None:
    async with crew(*NOBODY, "--stuck-timeout", "3") as made:
        workers = made.workers()
        stopped = [psutil.Process(pid) for pid in (made.process.pid, *workers)]
        for process in stopped:
            process.suspend()
        await asyncio.sleep(4)
        for process in stopped:
            process.resume()
        await asyncio.sleep(1)
        assert made.workers() == workers


async def test_what_a_dead_worker_had_under_way_takes_no_place_any_more() -> None:
    held = Held()
    async with crew_before({"N1": held}, "--policy", "max_connections_per_server=2") as (made, _):
        lost, left = made.workers()
        full = [await made.at(lost) for _ in range(2)]
        for client in full:
            await begin(client)
        other = await made.at(left)
        await other.chat(stream=True)
        refused = await other.answer()
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        psutil.Process(lost).kill()
        await until(lambda: lost not in made.workers())
        await made.all_serve(2)
        await begin(await made.at(left))


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
async def test_running_streams_may_end_when_the_router_is_stopped(asked: signal.Signals) -> None:
    held = Held()
    async with crew_before({"N1": held}) as (made, _):
        clients = await made.one_client_each()
        for client in clients:
            await begin(client)
        made.send(asked)
        await nobody_listens(made.port)
        held.go.set()
        for client in clients:
            assert b"[DONE]" in await rest(client)
        assert await made.end() == 0


async def nobody_listens(port: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                async with Client(port):
                    await asyncio.sleep(0.02)
            except OSError:
                return


async def test_a_second_signal_ends_all_at_once() -> None:
    async with crew_before({"N1": Held()}) as (made, _):
        workers = made.workers()
        client = await made.at(workers[0])
        await begin(client)
        made.send(signal.SIGTERM)
        await nobody_listens(made.port)
        made.send(signal.SIGINT)
        assert await made.end() == 128 + signal.SIGINT
        assert not any(map(is_running, workers))


async def test_no_worker_is_left_when_the_parent_is_killed() -> None:
    held = Held()
    async with crew_before({"N1": held}) as (made, _):
        workers = made.workers()
        client = await made.at(workers[0])
        await begin(client)
        made.send(signal.SIGKILL)
        assert await made.end() == -signal.SIGKILL
        await nobody_listens(made.port)
        held.go.set()
        assert b"[DONE]" in await rest(client)
        await until(lambda: not any(map(is_running, workers)))


async def test_a_worker_that_is_asked_to_end_by_itself_ends_its_streams_and_is_replaced() -> None:
    held = Held()
    async with crew_before({"N1": held}) as (made, _):
        worker = made.workers()[0]
        client = await made.at(worker)
        await begin(client)
        psutil.Process(worker).terminate()
        held.go.set()
        assert b"[DONE]" in await rest(client)
        await until(lambda: worker not in made.workers())
        await made.all_serve(2)


def ended_soon(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_port_that_is_taken_is_named(workers: int) -> None:
    """Also by workers of another router, which share theirs among each other."""
    async with crew(*NOBODY) as made:
        ended = await asyncio.to_thread(ended_soon, *command(made.port, *NOBODY, workers=workers))
        assert ended.returncode != 0
        assert f"Port {made.port} of 127.0.0.1 is taken by another process" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert (await ask(made.port, "GET", "/healthz")).status == 200


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", "100000"])
def test_a_wrong_number_of_workers_is_refused_in_words(count: str) -> None:
    ended = ended_soon(*command(0, *NOBODY), "--workers", count)
    assert ended.returncode == 2
    assert f"{count}: a whole number from 1" in ended.stderr


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_wrong_port_is_refused_in_words(port: str) -> None:
    ended = ended_soon(*command(0, *NOBODY), f"--port={port}")
    assert (ended.returncode, f"{port}: a whole number from 0 to 65535" in ended.stderr) == (2, True)


def test_an_address_that_is_not_ours_is_refused_in_words() -> None:
    with held_port() as port:
        ended = ended_soon(*command(port, *NOBODY, "--host", "192.0.2.1"))
    assert ended.returncode == 1
    assert "192.0.2.1" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_port_0_takes_a_free_one_for_all_workers_and_says_which() -> None:
    process = await asyncio.create_subprocess_exec(*command(0, *NOBODY), cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    try:
        port = await port_in_log(process)
        made = Crew(process, port)
        await made.all_serve(2)
        assert (await ask(port, "GET", "/healthz")).status == 200
    finally:
        process.terminate()
        async with asyncio.timeout(LIMIT_S):
            await process.communicate()
    assert process.returncode == 0


async def port_in_log(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        while b"listening on http://127.0.0.1:" not in (line := await process.stderr.readline()):
            assert line
    return int(line.split(b"127.0.0.1:")[1].split()[0])


async def test_one_worker_is_the_process_itself() -> None:
    async with crew_before({"N1": streams()}, workers=1) as (made, _):
        assert made.workers() == []
        assert (await ask(made.port, "POST", "/v1/chat/completions", chat_body())).status == 200
