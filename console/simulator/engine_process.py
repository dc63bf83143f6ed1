"""The engine in a process of its own (SIMULATOR_PROCESSES=2), as vLLM's EngineCore: it owns the side-channel port,
outlives a SIGKILL of the HTTP server, and its death is noticed there.

Both ends speak JSON lists, one per line, over a socket pair. Run as a program, this module is the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import orjson

from .contracts import EngineConfig, EngineRequest, Output, Sink
from .engine import Engine
from .faults import Faults
from .handoff import Identity, Message, bind, listen
from .lines import JsonLines
from .loglines import API, ENGINE, Log
from .steps import StepCosts

COMM = "VLLM::EngineCor"


def set_process_name(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)


class _Lines(JsonLines):
    """Lists in both directions."""

    def __init__(self, receive: Callable[[list[Any]], None], lost: Callable[[], None]) -> None:
        super().__init__()
        self._receive, self._lost = receive, lost

    def take(self, message: Any) -> None:
        self._receive(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def say(self, *message: Any) -> None:
        self.send(message)


class EngineChild:
    """The child process, started while the server starts; `RemoteEngine` talks to it afterwards."""

    def __init__(self, config: EngineConfig) -> None:
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "console.simulator.engine_process", str(theirs.fileno()), str(os.getpid())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE)
        theirs.close()
        assert self.process.stdin is not None
        self.process.stdin.write(orjson.dumps(asdict(config)))
        self.process.stdin.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class RemoteEngine:
    """The engine as the HTTP server sees it."""

    def __init__(self, child: EngineChild, on_death: Callable[[], None]) -> None:
        self.dead = False
        self._child = child
        self._on_death = on_death
        self._sinks: dict[str, Sink] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._last_metrics = ""
        self._lines = _Lines(self._receive, self._lost)

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: self._lines, sock=self._child.socket)

    @property
    def unfinished(self) -> int:
        return len(self._sinks)

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        self._sinks[request.request_id] = sink
        self._lines.say("submit", asdict(request))

    def abort(self, request_id: str) -> None:
        self._sinks.pop(request_id, None)
        self._lines.say("abort", request_id)

    def stop(self, request_id: str) -> None:
        self._sinks.pop(request_id, None)
        self._lines.say("stop", request_id)

    def release(self, params: Message) -> None:
        self._lines.say("release", params)

    def set_faults(self, faults: Faults) -> None:
        self._lines.say("faults", asdict(faults))

    def pause(self, paused: bool) -> None:
        self._lines.say("pause", paused)

    def reset_prefix_cache(self) -> None:
        self._lines.say("reset_prefix_cache")

    async def listen(self) -> bool:
        """False when the side-channel port is in use."""
        return bool(await self._ask("listen"))

    async def metrics_text(self) -> str:
        if not self.dead:
            self._last_metrics = str(await self._ask("metrics"))
        return self._last_metrics

    async def leases(self) -> int:
        return 0 if self.dead else int(await self._ask("leases"))

    async def _ask(self, question: str) -> Any:
        self._asked += 1
        future = self._questions[self._asked] = asyncio.get_running_loop().create_future()
        self._lines.say(question, self._asked)
        return await future

    def _receive(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "answer":
            future = self._questions.pop(message[1])
            if not future.done():
                future.set_result(message[2])
            return
        request_id, output = message[1], Output(*message[2:])
        sink = self._sinks.get(request_id)
        if output.finish is not None:
            self._sinks.pop(request_id, None)
        if sink is not None:
            sink(output)

    def _lost(self) -> None:
        self.dead = True
        sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink(Output(0, 0, "dead", 0, None))
        for future in self._questions.values():
            if not future.done():
                future.set_result("" if self._last_metrics == "" else self._last_metrics)
        self._questions.clear()
        self._on_death()


class _Server:
    """The child's side."""

    def __init__(self, config: EngineConfig, log: Log) -> None:
        self._config = config
        self._log = log
        self._engine = Engine(config, log, lambda: os._exit(1))
        self.lines = _Lines(self._receive, self._parent_gone)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._engine.start()

    def _parent_gone(self) -> None:
        """vLLM's EngineCore lives on when its parent is killed; a parent that ends in order kills it."""

    def _receive(self, message: list[Any]) -> None:
        kind, *values = message
        engine = self._engine
        if kind == "submit":
            request = EngineRequest(**values[0])
            engine.submit(request, self._sink(request.request_id))
        elif kind in ("abort", "stop", "release", "pause", "reset_prefix_cache"):
            getattr(engine, kind)(*values)
        elif kind == "faults":
            engine.set_faults(Faults(**values[0]))
        else:
            self._answer_later(kind, values[0])

    def _sink(self, request_id: str) -> Sink:
        return lambda output: self.lines.say("output", request_id, *output)

    def _answer_later(self, question: str, number: int) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(question, number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: str, number: int) -> None:
        if question == "metrics":
            answer: Any = await self._engine.metrics_text()
        elif question == "leases":
            answer = await self._engine.leases()
        else:
            answer = await self._listen()
        self.lines.say("answer", number, answer)

    async def _listen(self) -> bool:
        if not self._config.connector:
            return True
        try:
            sock = bind(self._config.side_host, self._config.side_port)
            await listen(sock, self._engine.answer_peer)
        except OSError:
            return False
        return True


def _read_config() -> EngineConfig:
    values = orjson.loads(sys.stdin.buffer.read())
    values["identity"] = Identity(**values["identity"])
    values["costs"] = StepCosts(**values["costs"])
    return EngineConfig(**values)


async def _serve(fd: int, config: EngineConfig, log: Log) -> None:
    server = _Server(config, log)
    server.start()
    sock = socket.socket(fileno=fd)
    await asyncio.get_running_loop().create_unix_connection(lambda: server.lines, sock=sock)
    await asyncio.Event().wait()


def main() -> None:
    # The HTTP server decides what a signal means; the engine goes when it is told or killed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_process_name(COMM)
    config = _read_config()
    log = Log({API: int(sys.argv[2]), ENGINE: os.getpid()})
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1]), config, log))


if __name__ == "__main__":
    main()
