"""A real agent process on the test's Valkey, asked through Celery and heard through its reports."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from django.conf import settings

from console.celery import app
from console.launch import process
from console.launch.contracts import Check, HostReport, LaunchSpec, LogTail, ServerObservation
from console.launch.reporter import channel_of
from tests.waiting import LIMIT_S, wait_for

PRODUCT = Path(__file__).resolve().parents[2]


def agent_command(*arguments: str) -> list[str]:
    return [sys.executable, str(PRODUCT / "manage.py"), "agent", *arguments]


def agent_environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "REDIS_URL": settings.REDIS_URL, "AGENT_REPORT_EVERY_S": "0.2", **variables}


def as_it_is(command: list[str]) -> list[str]:
    return command


class AgentProcess:
    """`broker_url` belongs to `valkey`; `inside` turns a command into one that runs elsewhere, in a namespace."""

    def __init__(
        self,
        valkey: "redis.Redis",
        folder: Path,
        name: str = "gpu01",
        broker_url: str = settings.REDIS_URL,
        inside: Callable[[list[str]], list[str]] = as_it_is,
    ) -> None:
        self.valkey, self.folder, self.name = valkey, folder, name
        self.broker_url, self.inside = broker_url, inside
        self.state_dir = folder / "state"
        self._process: subprocess.Popen[bytes] | None = None
        self._channel = valkey.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._channel.subscribe(channel_of(settings.REDIS_PREFIX, name))
        self._reports: list[HostReport] = []

    # Its life

    def start(self, *arguments: str, **variables: str) -> "AgentProcess":
        """Returns when its first report is there."""
        self._forget_reports()
        command = agent_command("--name", self.name, "--state-dir", str(self.state_dir), "--simulate-gpus", "2")
        environment = agent_environment(REDIS_URL=self.broker_url, **variables)
        with (self.folder / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.inside([*command, *arguments]), env=environment, stdout=log, stderr=log
            )
        wait_for(lambda: self.reports() or not self._runs(), "for the first report")
        assert self._runs(), self.log()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> int:
        """Its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(LIMIT_S)

    def end(self) -> None:
        """The agent and every server of its host."""
        self._channel.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        while pids := self.server_pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # What it is asked

    def ask(self, task: str, *arguments: Any) -> Any:
        with app.connection_for_write(url=self.broker_url) as connection:
            return app.send_task(task, args=arguments, queue=f"host.{self.name}", connection=connection)

    def launch(self, spec: LaunchSpec) -> None:
        self.ask("agent.launch", spec)

    def tail(self, server_id: int, generation: int, max_bytes: int) -> LogTail:
        answer: LogTail = self.ask("agent.tail", server_id, generation, max_bytes).get(timeout=LIMIT_S)
        return answer

    def preflight(self, spec: LaunchSpec) -> list[Check]:
        answer: list[Check] = self.ask("agent.preflight", spec).get(timeout=LIMIT_S)
        return answer

    # What it says

    def reports(self) -> list[HostReport]:
        """What it has said lately, newest first."""
        with suppress(redis.ConnectionError):  # a test that cuts connections cuts this one too
            while message := self._channel.get_message():
                self._reports.insert(0, json.loads(message["data"]))
        del self._reports[60:]
        return self._reports

    def next_report(self) -> HostReport:
        """One that was made after this call."""
        self._forget_reports()
        wait_for(lambda: len(self.reports()) > 1, "for a report")
        return self.reports()[0]

    def _forget_reports(self) -> None:
        self.reports().clear()

    def server(self, server_id: int) -> ServerObservation | None:
        """As the newest report has it."""
        reports = self.reports()
        servers = reports[0]["servers"] if reports else []
        return next((one for one in servers if one["server_id"] == server_id), None)

    def wait_for(self, server_id: int, condition: Callable[[ServerObservation], Any]) -> ServerObservation:
        def found() -> ServerObservation | None:
            server = self.server(server_id)
            return server if server is not None and condition(server) else None

        server: ServerObservation = wait_for(found, f"last: {self.server(server_id)}")
        return server

    def server_pids(self, server_id: int | None = None) -> list[int]:
        """Processes of all its servers, or of one."""
        return process.marked(f"{self.state_dir}:" if server_id is None else f"{self.state_dir}:{server_id}:")

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()


def run_agent(arguments: Sequence[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    """An agent that is expected not to come up."""
    return subprocess.run(
        agent_command(*arguments),
        env=agent_environment(**variables),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
