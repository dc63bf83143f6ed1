"""The processes of a Switchyard on one machine, hosts' agents aside: broker, pages and router, worker, beat."""

import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections

from console import env
from console.demo.children import ChildSpec
from console.demo.supervise import CannotRun, Supervisor
from console.embedded import EVERYWHERE, EmbeddedValkey, ValkeyDidNotStart, free_port
from console.launch import network

READY_LIMIT_S = 180.0
WORKER_THREADS = 8
MANAGE = str(Path(__file__).resolve().parent.parent.parent / "manage.py")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run lives and where people reach it."""

    data_dir: Path
    host: str
    port: int
    bind: str = ""
    """Where the embedded broker listens for other machines; empty: nowhere."""

    @classmethod
    def from_environment(cls, data_dir: Path, bind: str = "") -> "Place":
        """HOST, PORT and VALKEY_BIND; `bind` opens both pages and broker to other machines. Raises env.BadSetting."""
        port = env.integer("PORT", 8000)
        if not 0 < port < 65536:
            raise env.BadSetting(f"PORT={port}: expected a port number from 1 to 65535")
        return cls(data_dir, bind or env.text("HOST", "127.0.0.1"), port, bind or env.text("VALKEY_BIND"))

    @property
    def url(self) -> str:
        """For a browser on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{_in_url(host)}:{self.port}"


def start(supervisor: Supervisor, place: Place) -> dict[str, str]:
    """Starts all of it; returns the environment that further processes of this run need, once the pages answer.

    Raises CannotRun before anything is started when the port is taken, StopAsked.
    """
    refuse_taken_port(place)
    child_env = {
        **os.environ,
        "DATA_DIR": str(place.data_dir),
        "REDIS_URL": env.secret("REDIS_URL") or start_valkey(supervisor, place),
        "VALKEY_BIND": "" if env.secret("REDIS_URL") else place.bind,
        "ALLOWED_HOSTS": env.text("ALLOWED_HOSTS") or ",".join(allowed_hosts(place.host)),
        "DJANGO_SETTINGS_MODULE": "console.settings",
        "PYTHONUNBUFFERED": "1",
    }
    call_command("migrate", interactive=False, verbosity=0)
    connections.close_all()  # none stays open in this process
    for spec in console_processes(place, child_env):
        supervisor.start(spec)
    return child_env


def console_processes(place: Place, child_env: Mapping[str, str]) -> list[ChildSpec]:
    celery = [sys.executable, "-m", "celery", "-A", "console.celery"]
    worker = ["worker", "-n", "console@%h", "-P", "threads", "-c", str(WORKER_THREADS), "-Q", "console,checks"]
    quiet = ["--without-mingle", "--without-gossip"]
    return [
        manage("web", ["web", "--host", place.host, "--port", str(place.port)], child_env),
        ChildSpec("worker", [*celery, *worker, *quiet], child_env),
        ChildSpec("beat", [*celery, "beat", "--pidfile", ""], child_env),
    ]


def manage(name: str, arguments: list[str], child_env: Mapping[str, str]) -> ChildSpec:
    return ChildSpec(name, [sys.executable, MANAGE, *arguments], child_env)


def refuse_taken_port(place: Place) -> None:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.host, place.port))
        except OSError as error:
            raise CannotRun(
                f"Cannot listen on {place.host} port {place.port}: {error.strerror}. "
                "Stop what listens there, or choose another port: PORT=8001"
            ) from error


def allowed_hosts(host: str) -> list[str]:
    """The names by which pages that listen on `host` may be asked: the usual ones, and those of its network."""
    if host in EVERYWHERE:
        cards = [address for card in network.nics() for address in card["addresses"]]
        return [*settings.ALLOWED_HOSTS, socket.gethostname(), *map(_in_url, cards)]
    return [*settings.ALLOWED_HOSTS, _in_url(host)]


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def start_valkey(supervisor: Supervisor, place: Place) -> str:
    """Its address. The port is VALKEY_PORT, or stays the same from run to run where it can, for agents elsewhere."""
    folder = place.data_dir / "valkey"
    folder.mkdir(parents=True, exist_ok=True)
    port = env.integer("VALKEY_PORT", 0) or _kept_port(folder / "port")
    valkey = EmbeddedValkey(folder, port=port, bind=place.bind)
    supervisor.start(ChildSpec("valkey", valkey.command(), os.environ), ends_last=True)
    child = supervisor.children["valkey"]
    try:
        valkey.wait(lambda: child.exit_code is None)
    except ValkeyDidNotStart as error:
        raise CannotRun(f"The broker did not start. The end of its log, {child.log}:\n{child.last_lines()}") from error
    return valkey.url


def _kept_port(path: Path) -> int:
    port = int(path.read_text()) if path.exists() else free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            port = free_port()
    path.write_text(str(port))
    return port


def wait_until_it_answers(supervisor: Supervisor, place: Place) -> None:
    """Raises CannotRun when the pages do not answer in time, StopAsked."""
    waited_s = 0.0
    while not _answers(f"{place.url}/healthz"):
        if waited_s >= READY_LIMIT_S:
            web = supervisor.children["web"]
            raise CannotRun(f"The pages did not answer within {READY_LIMIT_S:.0f} s.\n{web.last_lines()}")
        supervisor.pause(0.2)
        waited_s += 0.2


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
