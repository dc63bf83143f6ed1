"""A whole demo for tests: `manage.py demo` on a free port in a folder of its own, as a person starts it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.own import free_port

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 480.0
STOP_LIMIT_S = 180.0
NOT_INHERITED = ("REDIS_URL", "DATABASE_URL", "SECRET_KEY")
T = TypeVar("T")


def is_running(pid: int) -> bool:
    """A zombie has ended, though its parent has not heard of it yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class RunningDemo:
    """`demo` is the content of its demo.json, once it is ready. `command` may be `up` instead."""

    def __init__(self, data_dir: Path, port: int | None = None, command: str = "demo", **env: str) -> None:
        self.data_dir, self.port = data_dir, port or free_port()
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self.env = {**inherited, "DATA_DIR": str(data_dir), "PORT": str(self.port), **env}
        self.lines: list[str] = []
        self.demo: dict[str, str] = {}
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", command],
            cwd=ROOT,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self, limit_s: float = START_LIMIT_S) -> "RunningDemo":
        deadline = time.monotonic() + limit_s
        while not any(line.startswith("Switchyard is ready") for line in self.lines):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"the demo did not get ready:\n{self.output}")
            time.sleep(0.1)
        file = self.data_dir / "demo.json"
        self.demo = json.loads(file.read_text()) if file.exists() else {}
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """SIGTERM as a process manager sends it, SIGINT as a terminal does: to the whole group. Then a wait."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        self.process.wait(STOP_LIMIT_S)
        self._close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def child_pid(self, name: str) -> int | None:
        """Of one of the supervisor's children, as it noted it; None while that is not running."""
        try:
            pid = int(json.loads((self.data_dir / "run" / f"{name}.json").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None
        return pid if is_running(pid) else None

    def processes(self) -> list[psutil.Process]:
        """Everything that works in its data folder: by environment, or by where it writes its output."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        folder = str(self.data_dir)
        try:
            writes_to = os.readlink(f"/proc/{process.pid}/fd/1")
            return writes_to.startswith(folder) or process.environ().get("DATA_DIR") == folder
        except (OSError, psutil.Error):
            return False

    def get(self, path: str, **params: Any) -> Any:
        """The decoded answer of the REST API."""
        answer = httpx.get(f"{self.url}{path}", params=params, headers=self.token(), timeout=120)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, headers=self.token(), timeout=120)

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(f"{self.url}{path}", headers=self.token(), timeout=120)

    def broker_url(self) -> str:
        """What an agent on another machine would be given."""
        folder = self.data_dir / "valkey"
        password, port = (folder / "valkey.password").read_text(), (folder / "port").read_text()
        return f"redis://:{password}@127.0.0.1:{port}/0"

    def token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.demo['api_token']}"}

    def servers(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return {server["name"]: server for server in self.get("/api/servers")["items"]}

    def ask(self, **body: Any) -> httpx.Response:
        """One chat through the router."""
        asked = {"model": self.demo["model"], "messages": [{"role": "user", "content": "Say something."}], **body}
        key = {"Authorization": f"Bearer {self.demo['inference_key']}"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=asked, headers=key, timeout=120)
