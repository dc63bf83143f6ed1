"""The start of a server: its phases in order, and the ways in which it fails."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from uuid import uuid4

from . import loglines
from .arguments import CONNECTORS, Arguments
from .contracts import EngineConfig
from .faults import Faults
from .handoff import Identity, bind
from .loglines import API, ENGINE, PHASES, Line, Log, StartFacts
from .settings import Settings
from .steps import StepCosts


class StartFailed(SystemExit):
    """The lines have been written; the code is the exit code."""


# Causes that cannot come about by themselves here, for {"fail_start": …}: the phase they end, and the exception.
START_FAILURES: dict[str, tuple[str, str, str]] = {
    "model path missing": (
        "config",
        API,
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{model}'. "
        "Use `repo_type` argument if needed.",
    ),
    "model not cached": (
        "config",
        API,
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
        "specified revision on the local disk and outgoing traffic has been disabled.",
    ),
    "port in use": ("banner", API, "OSError: [Errno 98] Address already in use"),
    "nixl missing": ("connector", "worker", "RuntimeError: NIXL is not available"),
    "kv cache too small": (
        "kv_cache",
        ENGINE,
        "ValueError: To serve at least one request with the model's max seq len ({max_model_len}), (16.0 GiB KV cache "
        "is needed, which is larger than the available KV cache memory (2.0 GiB). Based on the available memory, the "
        "estimated maximum model length is {kv_tokens}.",
    ),
    "not enough memory": (
        "kv_cache",
        "worker",
        "ValueError: Free memory on device cuda:0 (8.04/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    "side channel in use": ("ready", ENGINE, ""),
}
_SIDE_CHANNEL_IN_USE = """Exception in thread nixl_handshake_listener:
Traceback (most recent call last):
  File "threading.py", line 1045, in _bootstrap_inner
    self.run()
zmq.error.ZMQError: Address already in use (addr='tcp://{host}:{port}')"""


@dataclass
class Started:
    """What a start hands to the serving phase."""

    http: socket.socket
    config: EngineConfig
    max_model_len: int


class Start:
    def __init__(
        self, arguments: Arguments, settings: Settings, faults: Faults, environment: Mapping[str, str]
    ) -> None:
        self._arguments = arguments
        self._settings = settings
        self._faults = faults
        self._environment = environment
        self._engine_id = arguments.transfer.engine_id or str(uuid4())
        self.log = Log({API: os.getpid(), ENGINE: os.getpid()})
        self.max_model_len = arguments.max_model_len or settings.model_max_len
        self.facts = self._start_facts()

    def _start_facts(self) -> StartFacts:
        arguments = self._arguments
        blocks = arguments.blocks_override or self._settings.kv_tokens // arguments.block_size
        connector = arguments.transfer.connector
        return StartFacts(
            model=arguments.model,
            url=f"http://{arguments.host}:{arguments.port}",
            given=arguments.given,
            max_model_len=self.max_model_len,
            kv_tokens=blocks * arguments.block_size,
            dtype=arguments.dtype,
            tensor_parallel=arguments.tensor_parallel,
            connector="NixlPullConnector" if connector == "NixlConnector" else connector,
            engine_id=self._engine_id,
            agent_id=str(uuid4()),
            kv_both=arguments.transfer.role == "kv_both",
            routes=(),
            tasks="['embed']" if arguments.pooling else "['generate']",
        )

    # --- phases

    def until_engine(self) -> Started:
        """All phases before the engine's process starts."""
        self._phase("banner", loglines.banner(self.facts))
        http = self._bind_http()
        self._check_config()
        self._phase("config", loglines.config(self.facts))
        return Started(http, self._engine_config(), self.max_model_len)

    def engine_phases(self) -> None:
        facts, start_s = self.facts, self._settings.start_s
        self._phase("engine", loglines.engine(facts))
        self._phase("weights", loglines.weights(facts, start_s * PHASES["weights"]))
        self._check_kv_size()
        self._phase("kv_cache", loglines.kv_cache(facts))
        self._phase("connector", loglines.connector(facts))
        self._phase("warmup", loglines.warmup(facts, start_s * PHASES["warmup"]))
        for line in loglines.scheduler(facts):
            self.log.write(line)

    def _phase(self, name: str, lines: list[Line]) -> None:
        self.wait(name)
        self._fail_if_wanted(name)
        for line in lines:
            self.log.write(line)
        self.silent_if_wanted(name)

    def wait(self, phase: str) -> None:
        sleep_through_signals(self._settings.start_s * PHASES[phase])

    def silent_if_wanted(self, phase: str) -> None:
        if self._faults.silent_after_phase == phase:
            hang()

    def engine_pid(self, pid: int) -> None:
        self.log = Log({API: os.getpid(), ENGINE: pid})

    # --- failures

    def _fail_if_wanted(self, phase: str) -> None:
        cause = self._faults.fail_start
        if cause is None or cause not in START_FAILURES or START_FAILURES[cause][0] != phase:
            return
        if cause == "nixl missing":
            self.log.write(Line(API, "nixl_utils.py:62", "NIXL is not available", "WARNING"))
        _, process, exception = START_FAILURES[cause]
        facts = self.facts
        text = exception.format(model=facts.model, max_model_len=facts.max_model_len, kv_tokens=facts.kv_tokens)
        self.fail(facts.worker if process == "worker" else process, text)

    def fail(self, process: str, exception: str) -> None:
        """Writes what vLLM writes, and raises StartFailed with exit code 1."""
        is_api = process == API
        lines = loglines.traceback(API, exception) if is_api else loglines.engine_start_failure(process, exception)
        for line in lines:
            self.log.write(line)
        raise StartFailed(1)

    def _bind_http(self) -> socket.socket:
        try:
            return bind(self._arguments.host, self._arguments.port)
        except OSError as error:
            self.fail(API, f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}")
            raise

    def _check_config(self) -> None:
        arguments = self._arguments
        connector = arguments.transfer.connector
        if connector is not None and connector not in CONNECTORS:
            self.fail(API, f"ValueError: Unsupported connector type: {connector}")
        model = arguments.model
        if model.startswith(("/", "./", "../")) and not os.path.isdir(model):
            self.fail(API, START_FAILURES["model path missing"][2].format(model=model))
        if self.max_model_len > self._settings.model_max_len:
            self.fail(
                API,
                f"ValueError: User-specified max_model_len ({self.max_model_len}) is greater than the derived "
                f"max_model_len (max_position_embeddings={self._settings.model_max_len}).",
            )

    def _check_kv_size(self) -> None:
        if self.facts.kv_tokens >= self.max_model_len:
            return
        text = START_FAILURES["kv cache too small"][2]
        self.fail(ENGINE, text.format(max_model_len=self.max_model_len, kv_tokens=self.facts.kv_tokens))

    def side_channel_in_use(self, config: EngineConfig) -> None:
        """vLLM hangs here for ever: no exit, no HTTP, and SIGTERM is lost."""
        self.log.raw(_SIDE_CHANNEL_IN_USE.format(host=config.side_host, port=config.side_port))
        hang()

    @property
    def wants_side_channel_in_use(self) -> bool:
        return self._faults.fail_start == "side channel in use"

    # --- configuration of the engine

    def _engine_config(self) -> EngineConfig:
        arguments, settings, transfer = self._arguments, self._settings, self._arguments.transfer
        costs = StepCosts(
            settings.step_ms, settings.prompt_token_ms, settings.stream_ms, settings.context_token_ms, settings.speed
        )
        identity = Identity(
            engine_id=self._engine_id,
            model=arguments.model,
            dtype=arguments.dtype,
            mode=transfer.mode,
            block_size=arguments.block_size,
            tensor_parallel=arguments.tensor_parallel,
        )
        return EngineConfig(
            model_name=arguments.names[0],
            max_model_len=self.max_model_len,
            identity=identity,
            connector=transfer.connector is not None,
            recompute=transfer.recompute,
            enforce_hash=bool(transfer.extra.get("enforce_handshake_compat", True)),
            lease_s=transfer.lease_s,
            side_host=self._environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
            side_port=self._side_port(),
            blocks=self.facts.kv_tokens // arguments.block_size,
            token_budget=arguments.token_budget,
            max_sequences=arguments.max_sequences,
            prefix_caching=arguments.prefix_caching,
            costs=costs,
            kv_bytes_per_token=settings.kv_bytes_per_token,
            kv_gbps=settings.kv_gbps,
            handshake_s=settings.handshake_ms / 1000,
            handshake_timeout_s=settings.handshake_timeout_s,
            log_interval_s=float(self._environment.get("VLLM_LOG_STATS_INTERVAL") or 10),
        )

    def _side_port(self) -> int:
        raw = self._environment.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
        if self._arguments.transfer.connector is None:
            return 0
        try:
            return int(raw)
        except ValueError:
            self.fail(self.facts.worker, f"ValueError: invalid literal for int() with base 10: {raw!r}")
            raise


def sleep_through_signals(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def hang() -> None:
    while True:
        sleep_through_signals(3600.0)


def handle_signals_while_starting(faults: Faults, log: Log, stop_s: float) -> None:
    """After the imports SIGTERM is lost or hangs the start; SIGINT ends it, late."""

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        if faults.sigterm_starting == "hangs" and not faults.ignore_sigterm:
            hang()

    def on_sigint(number: int, frame: FrameType | None) -> None:
        sleep_through_signals(stop_s)
        log.raw("KeyboardInterrupt: terminated")
        raise StartFailed(1)

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, on_sigint)
