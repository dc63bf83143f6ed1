"""`manage.py agent`: joins this machine to a Switchyard as a host."""

import os
import re
import signal
import sys
import threading
import warnings
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from celery.exceptions import SecurityWarning
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from console import env
from console.celery import app
from console.launch import agent, credential
from console.launch.engines import find_vllm
from console.launch.gpus import GpuReader, NvmlGpus, SimulatedGpus
from console.launch.joining import (
    CannotJoin,
    NameClaim,
    check_broker,
    own_address,
    owner_of,
    shown,
    transport_options,
)
from console.launch.network import is_loopback
from console.launch.reporter import ReportChannel, Reporter, channel_of
from console.launch.statefile import StateDirInUse

DEFAULT_PORTS = "21000-21199"
TASKS_AT_ONCE = 8
STDERR = 2
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def host_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ArgumentTypeError(
            f"{text!r} cannot be a host's name: use lower-case letters, digits and hyphens, at most 63, "
            "starting and ending with a letter or digit"
        )
    return text


def port_range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if not found or not 1024 <= int(found[1]) < int(found[2]) <= 65535:
        raise ArgumentTypeError(f"{text!r}: expected two ports between 1024 and 65535, such as {DEFAULT_PORTS}")
    return int(found[1]), int(found[2])


def gpu_count(text: str) -> int:
    if not text.isdecimal() or int(text) > 64:
        raise ArgumentTypeError(f"{text!r}: expected a number of GPUs from 0 to 64")
    return int(text)


class Broker(NamedTuple):
    """`prefix`: REDIS_PREFIX of the console, before every key and channel."""

    url: str
    prefix: str


class Command(BaseCommand):
    help = "Joins this machine as a host: launches and watches servers here. Needs the broker and no database."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--name", type=host_name, required=True, help="the host's name in the console, such as gpu01")
        add(
            "--console", default="", metavar="URL", help="the console to join, such as http://console:8000; needed once"
        )
        add("--token", default="", help="a join token of that console, or JOIN_TOKEN; needed once")
        add("--broker", default="", help="to join without a token: redis://:password@host:6379/0; better given as "
            "REDIS_URL, because other users of this machine can read the command line")  # fmt: skip
        add("--address", default="", help="where routers and other hosts reach this one; default: the address of the "
            "interface through which the broker is reached")  # fmt: skip
        add("--simulate-gpus", type=gpu_count, metavar="N", help="pretend to have N GPUs, for simulated servers")
        add("--vllm", type=Path, metavar="PATH", help="the vllm command to launch; default: the one on the PATH")
        add("--port-range", type=port_range, default=DEFAULT_PORTS, metavar="FIRST-LAST",
            help=f"ports that servers may use; default {DEFAULT_PORTS}")  # fmt: skip
        add("--state-dir", type=Path, metavar="DIR", help="where state and logs are kept; default: DATA_DIR/hosts/NAME")

    def handle(self, *args: Any, **options: Any) -> None:
        # Until the worker takes signals itself, some seconds on a busy host; the name at the broker is given back.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            broker = self._broker(options)
            self._serve(self._settle(options, broker), broker)
        except (CannotJoin, StateDirInUse, PermissionError, env.BadSetting) as error:
            raise CommandError(str(error)) from error

    def _broker(self, options: dict[str, Any]) -> Broker:
        """As given, else as joined, else as the environment has it. Raises CannotJoin."""
        if not options["broker"]:
            token = options["token"] or env.secret("JOIN_TOKEN")
            found = credential.settle(_state_dir(options), options["name"], options["console"], token)
            if found is not None:
                kept, warning = found
                if warning:
                    self.stderr.write(warning)
                return Broker(kept.url, kept.prefix)
        url = options["broker"] or settings.REDIS_URL
        check_broker(url)
        return Broker(url, settings.REDIS_PREFIX)

    def _serve(self, settled: agent.AgentOptions, broker: Broker) -> None:
        name = NameClaim(broker.url, f"{broker.prefix}:agent:{settled.name}", owner_of(settled.state_dir))
        reports = ReportChannel(broker.url, channel_of(broker.prefix, settled.name))
        name.take()
        try:
            with agent.running(settled, Reporter(reports.publish, name.renew)):
                self._announce(settled, broker.url)
                work(settled.name, broker)
        finally:
            name.release()
            reports.close()

    def _settle(self, options: dict[str, Any], broker: Broker) -> agent.AgentOptions:
        name: str = options["name"]
        address: str = options["address"] or own_address(broker.url)
        if is_loopback(address):
            self.stderr.write(
                f"{name} will be reached at {address}, that is from this machine only. "
                "If other machines take part, start it with --address and its address in their network."
            )
        return agent.AgentOptions(
            name=name,
            address=address,
            state_dir=_state_dir(options),
            port_range=options["port_range"],
            vllm=find_vllm(options["vllm"]),
            gpus=gpu_reader(options["simulate_gpus"]),
            report_every_s=settings.AGENT_REPORT_EVERY_S,
        )

    def _announce(self, settled: agent.AgentOptions, broker: str) -> None:
        first, last = settled.port_range
        self.stdout.write(
            f"{settled.name} joins {shown(broker)} at {settled.address}, ports {first}-{last}, "
            f"vLLM {settled.vllm or 'not found'}, state in {settled.state_dir} (process {os.getpid()})"
        )


def gpu_reader(simulated: int | None) -> GpuReader:
    return NvmlGpus() if simulated is None else SimulatedGpus(simulated)


def _state_dir(options: dict[str, Any]) -> Path:
    given: Path | None = options["state_dir"]
    return (given or settings.DATA_DIR / "hosts" / options["name"]).expanduser().absolute()


def work(name: str, broker: Broker) -> None:
    """Until SIGTERM or Ctrl-C; tasks under way are finished first. The servers stay."""
    # Said to root because pickled messages could run anything; this worker takes JSON and its own four tasks.
    warnings.simplefilter("ignore", SecurityWarning)
    queue = f"host.{name}"
    app.conf.update(
        # Only the agent's own tasks: what reaches this queue can do nothing else here.
        imports=("console.launch.agent",),
        broker_url=broker.url,
        result_backend=broker.url,
        broker_transport_options={
            **app.conf.broker_transport_options,
            **transport_options(queue),
            "global_keyprefix": f"{broker.prefix}:",
        },
        result_backend_transport_options={"global_keyprefix": f"{broker.prefix}:result:"},
        broker_connection_max_retries=None,
        # Whoever could speak to all workers at once could stop the agents of other hosts.
        worker_enable_remote_control=False,
        worker_redirect_stdouts=False,
    )
    # From here on code is loaded that must not be broken off: some makes errors of its own of a SystemExit.
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    worker = _worker_class(asked_to_end, name)(
        hostname=f"{name}@switchyard",
        queues=[queue],
        pool="threads",
        concurrency=TASKS_AT_ONCE,
        # Agents need not know of each other; without these an idle one sends nothing but its reports.
        without_mingle=True,
        without_gossip=True,
        without_heartbeat=True,
        quiet=True,
    )
    worker.start()


def _worker_class(asked_to_end: threading.Event, name: str) -> Any:
    """A worker that heeds a SIGTERM which came before it took signals itself, and says of Ctrl-C what it means here."""

    class AgentWorker(app.Worker):  # type: ignore[misc, name-defined]
        def on_start(self) -> None:
            super().on_start()
            signal.signal(signal.SIGINT, _on_ctrl_c(name))
            if asked_to_end.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    return AgentWorker


def _on_ctrl_c(name: str) -> Callable[[int, FrameType | None], None]:
    """As SIGTERM. Celery would say that all running tasks are going to be terminated, which sounds like the servers."""

    def end(number: int, frame: FrameType | None) -> None:
        said = (
            f"\n{name} ends once what it was asked to do is done; its servers run on. Ctrl-C again breaks that off.\n"
        )
        os.write(STDERR, said.encode())  # A handler must not print: it may have come in between one.
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGQUIT))
        os.kill(os.getpid(), signal.SIGTERM)

    return end
