"""Real simulated servers for tests.

    with SimulatedServer(role="decode", env={"SIMULATOR_SPEED": "10"}, args=["--max-num-seqs", "8"]) as server:
        httpx.post(f"{server.url}/v1/completions", json={…})
        server.faults(reset_after_chunks=3)          # keys: console/simulator/faults.py
        server.requests()                            # what it received
        server.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")

`async with` does the same without blocking the loop while the server starts and stops. The other methods block for some
milliseconds; the server is another process, so they cannot wait for the test itself.

Each server is a process in a session of its own on free loopback ports, ready when its `/health` answers, and gone with
all of its group at the end. With `wait=False` it is only started; `wait_ready()` or `wait_exit()` goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.own import free_port
from tests.waiting import wait_until

Role = Literal["plain", "prefill", "decode"]
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
MODEL = "simulated/model"
NAME = "tiny"
END_LIMIT_S = 120.0
ROOT = Path(__file__).resolve().parents[2]


class SimulatedServer:
    """`env` and `args` come on top of what the role needs. `transfer` adds fields to --kv-transfer-config.

    The model starts at once (SIMULATOR_START_S=0) and steps at ten times the default speed unless `env` says otherwise.
    """

    def __init__(
        self,
        role: Role = "plain",
        *,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        faults: Mapping[str, Any] | None = None,
        transfer: Mapping[str, Any] | None = None,
        model: str = MODEL,
        name: str = NAME,
        port: int | None = None,
        side_port: int | None = None,
        wait: bool = True,
    ) -> None:
        self.role = role
        self.name = name
        self.port = port or free_port()
        self.side_port = side_port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = dict(env or {})
        self._args = list(args)
        self._faults = dict(faults or {})
        self._transfer = dict(transfer or {})
        self._model = model
        self._wait = wait
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    # --- life

    @property
    def command(self) -> list[str]:
        command = [sys.executable, "-m", "console.simulator", "serve", self._model, "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--served-model-name", self.name]
        if self.role != "plain":
            config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[self.role], **self._transfer}
            command += ["--kv-transfer-config", json.dumps(config)]
        return command + self._args

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_port),
            "SIMULATOR_START_S": "0",
            "SIMULATOR_STOP_S": "0.02",
            "SIMULATOR_WATCHDOG_S": "0.2",
            "SIMULATOR_SPEED": "10",
            "SIMULATOR_CONTROL": "1",
            "SIMULATOR_FAULTS": json.dumps(self._faults),
            **self._env,
        }

    def start(self) -> None:
        """Starts the process; again on the same ports after it has ended."""
        if self._log is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def is_ready(self) -> bool:
        """Raises AssertionError with the log when the process has ended."""
        code = self.process.poll()
        assert code is None, f"the server ended with {code} while starting:\n{self.log()}"
        try:
            return httpx.get(f"{self.url}/health", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self) -> None:
        try:
            wait_until(self.is_ready)
        except AssertionError as error:
            raise AssertionError(f"the {self.role} server did not become ready: {error}\n{self.log()}") from error

    def wait_exit(self, limit_s: float = END_LIMIT_S) -> int:
        """The exit code; negative for a signal."""
        return self.process.wait(limit_s)

    def stop(self, limit_s: float = END_LIMIT_S) -> int:
        """SIGTERM to the main process; its exit code."""
        self.process.terminate()
        return self.wait_exit(limit_s)

    def kill(self) -> None:
        """SIGKILL to the main process alone."""
        self.process.kill()
        self.process.wait()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self._process is not None:
            self.kill_group()
        if self._log is not None:
            self._log.close()

    # --- looking at it

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        assert self._log is not None, "not started"
        # Not by seeking: the server writes through the same open file, and would go on where we have looked.
        handle = self._log.fileno()
        return os.pread(handle, os.fstat(handle).st_size, 0).decode(errors="replace")

    def requests(self, path: str | None = None) -> list[dict[str, Any]]:
        """Received requests, oldest first: method, path, query, headers, body, at, status, disconnected."""
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/simulator/requests").json()
        return [request for request in found if path is None or request["path"] == path]

    def forget_requests(self) -> None:
        httpx.delete(f"{self.url}/simulator/requests").raise_for_status()

    @contextlib.contextmanager
    def asked(self, path: str, body: Mapping[str, Any]) -> Iterator[socket.socket]:
        """The connection of a client whose POST the server has received; the client leaves at the end of the block."""
        known, content = len(self.requests(path)), json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + content)
            wait_until(lambda: len(self.requests(path)) > known, "the request to be received")
            yield client

    def faults(self, **changes: Any) -> dict[str, Any]:
        """Merges changes (None sets back) and returns the faults that are set."""
        response = httpx.post(f"{self.url}/simulator/faults", json=changes)
        assert response.status_code == 200, response.text
        merged: dict[str, Any] = response.json()
        return merged

    def clear_faults(self) -> None:
        httpx.delete(f"{self.url}/simulator/faults").raise_for_status()

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics").text

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a name's samples with these labels; KeyError when there is none."""
        families = text_string_to_metric_families(self.metrics())
        values = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        if not values:
            raise KeyError(name)
        return sum(values)

    # --- context managers

    def __enter__(self) -> Self:
        self.start()
        try:
            if self._wait:
                self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
