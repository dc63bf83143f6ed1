"""The server's process from its first line to its exit code: start, serve, and what signals and deaths do to it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import orjson

from . import arguments as command_line
from . import loglines
from .adapters import Adapters
from .app import App
from .arguments import Arguments
from .bodies import ServerFacts
from .engine import Engine
from .engine_process import EngineChild, RemoteEngine
from .faults import BadFaults, Faults
from .handoff import bind, listen
from .loglines import API, PHASES
from .settings import BadSetting, Settings
from .start import Start, Started, StartFailed, handle_signals_while_starting, sleep_through_signals
from .wire import Connection

BACKLOG = 2048
_DRAIN_LOOK_S = 0.05


def main(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    settings, faults = _read_settings(environment)
    # 1. Imports: for so long SIGTERM kills at once.
    sleep_through_signals(settings.start_s * PHASES["imports"])
    # 2. Arguments; a usage error ends here with code 2.
    arguments = _with_key_from(environment, command_line.parse(argv))
    start = Start(arguments, settings, faults, environment)
    handle_signals_while_starting(faults, start.log, settings.stop_s)
    # 3. The phases of the log, up to the engine.
    try:
        started = start.until_engine()
        server = Server(arguments, settings, faults, environment, start, started)
        code = server.run()
    except StartFailed as failed:
        code = int(str(failed.code))
    os._exit(code)


def _read_settings(environment: Mapping[str, str]) -> tuple[Settings, Faults]:
    try:
        settings = Settings.from_environment(environment)
        changes = orjson.loads(settings.faults or "{}")
        return settings, Faults().merged(changes)
    except (BadSetting, BadFaults, ValueError) as error:
        sys.exit(f"simulator: {error}")


def _with_key_from(environment: Mapping[str, str], arguments: Arguments) -> Arguments:
    key = environment.get("VLLM_API_KEY")
    return replace(arguments, api_keys=(key,)) if key and not arguments.api_keys else arguments


class Server:
    def __init__(
        self,
        arguments: Arguments,
        settings: Settings,
        faults: Faults,
        environment: Mapping[str, str],
        start: Start,
        started: Started,
    ) -> None:
        self._arguments = arguments
        self._settings = settings
        self._faults = faults
        self._environment = environment
        self._start = start
        self._started = started
        self._child = EngineChild(started.config) if settings.processes > 1 else None
        if self._child is not None:
            start.engine_pid(self._child.process.pid)

    def run(self) -> int:
        """The exit code."""
        try:
            self._start.engine_phases()
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(self._serve())
        finally:
            # Not reached by SIGKILL: then the engine's process lives on, as vLLM's does.
            if self._child is not None:
                self._child.kill()

    # --- serving

    async def _serve(self) -> int:
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine = await self._make_engine()
        self._app = self._make_app()
        self._engine_started_log()
        self._app.set_faults(self._faults)
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._app), sock=self._started.http, backlog=BACKLOG
        )
        self._watch_signals()
        code = await self._exit
        server.close()
        self._hold_after_exit()
        return code

    async def _make_engine(self) -> Engine | RemoteEngine:
        config = self._started.config
        if self._start.wants_side_channel_in_use:
            self._start.side_channel_in_use(config)
        if self._child is not None:
            remote = RemoteEngine(self._child, self._engine_died)
            await remote.connect()
            if not await remote.listen():
                self._start.side_channel_in_use(config)
            return remote
        engine = Engine(config, self._start.log, self._engine_died)
        if config.connector:
            try:
                side_channel = await listen(bind(config.side_host, config.side_port), engine.answer_peer)
            except OSError:
                self._start.side_channel_in_use(config)
                raise
            engine.close_at_death(side_channel.close)
        engine.start()
        return engine

    def _make_app(self) -> App:
        arguments = self._arguments
        facts = ServerFacts(
            names=arguments.names,
            adapters=Adapters(
                arguments.names,
                arguments.adapters,
                may_change=self._environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1",
            ),
            max_model_len=self._started.max_model_len,
            max_logprobs=arguments.max_logprobs,
            auto_tools=arguments.auto_tools,
            tool_parser=arguments.tool_parser,
            answer_tokens=self._settings.answer_tokens,
            force_usage=arguments.force_usage,
            excludes_tools=arguments.excludes_tools,
        )
        return App(
            arguments,
            facts,
            self._engine,
            self._start.log,
            control=self._settings.control,
            dev_mode=self._environment.get("VLLM_SERVER_DEV_MODE") == "1",
            keep_alive_s=float(self._environment.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE") or 5),
            die=self._die,
        )

    def _engine_started_log(self) -> None:
        facts = replace(self._start.facts, routes=self._app.route_lines())
        time.sleep(self._settings.start_s * PHASES["ready"])
        for line in loglines.ready(facts):
            self._start.log.write(line)

    # --- ends

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)

    def _on_stop_signal(self) -> None:
        if self._stopping or self._app.faults.ignore_sigterm:
            return
        self._stopping = True
        self._say("[shutdown] API server: shutdown triggered")
        self._spawn_stop()

    def _spawn_stop(self) -> None:
        task = asyncio.get_running_loop().create_task(self._stop())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self) -> None:
        timeout_s = self._arguments.shutdown_timeout_s
        mode = "drain" if timeout_s else "abort"
        self._say(f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout_s:g}s")
        self._app.state.draining = True
        if timeout_s:
            await self._wait_for_requests(timeout_s)
            self._end_streams()
        elif self._engine.unfinished and self._app.faults.sigterm_in_flight == "hangs":
            # vLLM often leaves the clients' connections open without data and lives until they close them.
            self._engine.pause(True)
            while self._app.state.in_flight:
                await self._app.wait_for_change(_DRAIN_LOOK_S)
        else:
            self._end_streams()
        self._app.close_idle_connections()
        await asyncio.sleep(self._settings.stop_s)
        self._say("[shutdown] API server: shutting down FastAPI HTTP server")
        self._finish(0)

    async def _wait_for_requests(self, timeout_s: float) -> None:
        """Until running requests have ended and leased blocks were read or have expired."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and (self._engine.unfinished or await self._engine.leases()):
            await self._app.wait_for_change(_DRAIN_LOOK_S)

    def _end_streams(self) -> None:
        for exchange in list(self._app.state.exchanges):
            exchange.end_abruptly()

    def _engine_died(self) -> None:
        if self._stopping or self._exit.done():
            return
        self._start.log.error(API, "async_llm.py:690", "AsyncLLM output_handler failed: EngineDeadError")
        if self._environment.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH") != "1":
            # The exit code says nothing about why: vLLM's is 0 here as well.
            asyncio.get_running_loop().call_later(self._settings.watchdog_s, self._finish, 0)

    def _die(self, code: int) -> None:
        """A crash: nothing is tidied up but the child, which would hold the port for ever."""
        if self._child is not None:
            self._child.kill()
        self._hold_after_exit()
        os._exit(code)

    def _finish(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    def _hold_after_exit(self) -> None:
        """Leaves a process in the group that still has the side-channel port open, as a slow worker does."""
        seconds = self._app.faults.hold_s
        if not seconds or os.fork():
            return
        self._started.http.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(seconds)
        os._exit(0)

    def _say(self, text: str) -> None:
        self._start.log.info(API, "launcher.py:128", text)
