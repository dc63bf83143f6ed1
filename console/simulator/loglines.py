"""vLLM's log: the format of a line, the lines of a start in their order, and of its failures. Pure but for `Log`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
VERSION = "0.31.0"
API = "APIServer"
ENGINE = "EngineCore"

# The phases of a start, in order, with the share of the start's time that passes before each. SIMULATOR_FAULTS
# {"silent_after_phase": …} names them.
PHASES = {
    "imports": 0.35,
    "banner": 0.02,
    "config": 0.05,
    "engine": 0.1,
    "weights": 0.25,
    "kv_cache": 0.08,
    "connector": 0.05,
    "warmup": 0.08,
    "ready": 0.02,
}


@dataclass(frozen=True)
class Line:
    """One line: who says it, and where in vLLM's source. `process` "" prints the text without a prefix."""

    process: str
    source: str
    text: str
    level: str = "INFO"


class Log:
    """Writes to standard output with one system call per line, so that a killed process loses nothing.

    `pids` gives the pid that stands behind a process name.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)

    def write(self, line: Line) -> None:
        self.raw(self._format(line))

    def raw(self, text: str) -> None:
        data = (text + "\n").encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            # Nobody reads (a closed pipe, a full disk): a server goes on serving without its log.
            return

    def info(self, process: str, source: str, text: str) -> None:
        self.write(Line(process, source, text))

    def error(self, process: str, source: str, text: str) -> None:
        self.write(Line(process, source, text, "ERROR"))

    def access(self, peer: str, method: str, path: str, status: int) -> None:
        """As uvicorn's access log."""
        phrase = _PHRASES.get(status, "")
        self.raw(f'INFO:     {peer} - "{method} {path} HTTP/1.1" {status} {phrase}')

    def _format(self, line: Line) -> str:
        if not line.process:
            return line.text
        pid = self._pids.get(line.process, self._pids.get(ENGINE, os.getpid()))
        stamp = time.strftime("%m-%d %H:%M:%S")
        head = f"({line.process} pid={pid}) "
        body = f"{head}{line.level} {stamp} [{line.source}] "
        return "\n".join(body + part for part in line.text.split("\n"))


def nixl(source: str, text: str) -> Line:
    """NIXL's own lines carry no process name."""
    return Line("", "", f"{time.strftime('%Y-%m-%d %H:%M:%S')} NIXL INFO    {source} {text}")


@dataclass(frozen=True)
class StartFacts:
    """What the lines of a start tell."""

    model: str
    url: str
    given: Mapping[str, object]
    max_model_len: int
    kv_tokens: int
    dtype: str
    tensor_parallel: int
    connector: str | None
    engine_id: str
    agent_id: str
    kv_both: bool
    routes: tuple[tuple[str, str], ...]
    tasks: str

    @property
    def worker(self) -> str:
        """With one GPU the worker lives in the engine's process and its lines carry that name."""
        return "Worker_TP0" if self.tensor_parallel > 1 else ENGINE


def banner(facts: StartFacts) -> list[Line]:
    art = ["", "       █     █     █▄   ▄█", f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {VERSION}",
           f"  █▄█▀ █     █     █     █  model   {facts.model}", "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀", ""]  # fmt: skip
    shown = {name: value for name, value in facts.given.items() if value is not None}
    return [
        *(Line(API, "api_utils.py:347", text) for text in art),
        Line(API, "api_utils.py:286", f"non-default args: {shown}"),
    ]


def config(facts: StartFacts) -> list[Line]:
    lines = [
        Line(API, "model.py:699", "Resolved architecture: LlamaForCausalLM"),
        Line(API, "model.py:2109", f"Using max model len {facts.max_model_len}"),
    ]
    if facts.kv_both:
        text = (
            "kv_role='kv_both' is deprecated and will be removed in a future release. Please set "
            "kv_role='kv_producer' for prefill instances and kv_role='kv_consumer' for decode instances."
        )
        lines.append(Line(API, "kv_transfer.py:117", text, "WARNING"))
    if facts.connector:
        lines.append(Line(API, "nixl_utils.py:72", "NIXL is available"))
    return lines


def engine(facts: StartFacts) -> list[Line]:
    text = (
        f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{facts.model}', speculative_config=None, "
        f"dtype=torch.{facts.dtype}, max_seq_len={facts.max_model_len}, tensor_parallel_size={facts.tensor_parallel}"
    )
    lines = [Line(ENGINE, "nixl_utils.py:72", "NIXL is available")] if facts.connector else []
    return [*lines, Line(ENGINE, "core.py:129", text)]


def weights(facts: StartFacts, seconds: float) -> list[Line]:
    bar = "Loading safetensors checkpoint shards:"
    return [
        Line(facts.worker, "gpu_model_runner.py:3921", f"Starting to load model {facts.model}..."),
        Line(
            "",
            "",
            f"\r{bar}   0% Completed | 0/1 [00:00<?, ?it/s]\n\r{bar} 100% Completed | 1/1 [00:00<00:00, 85.51it/s]\n",
        ),
        Line(facts.worker, "default_loader.py:484", f"Loading weights took {seconds:.2f} seconds"),
    ]


def kv_cache(facts: StartFacts) -> list[Line]:
    concurrency = facts.kv_tokens / facts.max_model_len
    text = (
        f"GPU KV cache size: {facts.kv_tokens:,} tokens, Maximum concurrency for {facts.max_model_len:,} tokens "
        f"per request: {concurrency:.2f}x"
    )
    return [Line(ENGINE, "kv_cache_utils.py:2464", text)]


def connector(facts: StartFacts) -> list[Line]:
    if facts.connector is None:
        return []
    created = f"Creating v1 connector with name: {facts.connector} and engine_id: {facts.engine_id}"
    registering = "Registering KV_Caches. use_mla: False, kv_buffer_device: cuda, use_host_buffer: False"
    return [
        Line(facts.worker, "factory.py:62", created),
        Line(facts.worker, "base_worker.py:550", "Initializing NIXL wrapper"),
        Line(facts.worker, "base_worker.py:551", f"Initializing NIXL worker {facts.engine_id}"),
        nixl("_api.py:407", "Backend UCX was instantiated"),
        nixl("_api.py:285", f"Initialized NIXL agent: {facts.agent_id}"),
        Line(facts.worker, "base_worker.py:1437", registering),
    ]


def warmup(facts: StartFacts, seconds: float) -> list[Line]:
    text = f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s"
    return [Line(ENGINE, "core.py:380", text)]


def scheduler(facts: StartFacts) -> list[Line]:
    """The side channel listens from the last of these lines on."""
    if facts.connector is None:
        return []
    created = f"Creating v1 connector with name: {facts.connector} and engine_id: {facts.engine_id}"
    return [
        Line(ENGINE, "factory.py:62", created),
        Line(ENGINE, "base_scheduler.py:104", f"Initializing NIXL Scheduler {facts.engine_id}"),
    ]


def ready(facts: StartFacts) -> list[Line]:
    routes = [Line(API, "launcher.py:68", f"Route: {path}, Methods: {methods}") for path, methods in facts.routes]
    return [
        Line(API, "entry.py:132", f"Supported tasks: {facts.tasks}"),
        Line(API, "entry.py:136", f"Starting vLLM server on {facts.url}"),
        Line(API, "launcher.py:60", "Available routes are:"),
        *routes,
        Line("", "", f"INFO:     Started server process [{os.getpid()}]"),
        Line("", "", "INFO:     Waiting for application startup."),
        Line("", "", "INFO:     Application startup complete."),
    ]


def traceback(process: str, exception: str, *before: str) -> list[Line]:
    """As Python prints one; those of the engine are logged line by line, those of the server are not."""
    texts = ["Traceback (most recent call last):", *(f"  {text}" for text in before), exception]
    if process == API:
        return [Line("", "", f"(APIServer pid={os.getpid()}) {text}") for text in texts]
    return [Line(process, "core.py:1012", text, "ERROR") for text in texts]


ENGINE_FAILED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def engine_start_failure(process: str, cause: str) -> list[Line]:
    """The first ERROR is the cause; the last one only says that there was one."""
    return [
        Line(process, "core.py:1012", "EngineCore failed to start.", "ERROR"),
        *traceback(process, cause),
        *traceback(API, ENGINE_FAILED),
    ]
