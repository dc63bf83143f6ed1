"""A PostgreSQL of a test's own, that can be killed and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.own import free_port
from tests.waiting import wait_until

NOBODY = 65534
"""PostgreSQL does not run as root."""


def programs() -> Path | None:
    """Their folder: Debian keeps them off the PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = shutil.which("postgres") or (debian[-1] if debian else None)
    return Path(found).resolve().parent if found else None


class Postgres:
    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder, self._bin = folder, bin_folder
        self.port = free_port()
        self.url = f"postgres://switchyard@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        self._user = NOBODY if os.getuid() == 0 else None
        if self._user is not None:
            os.chown(folder, NOBODY, NOBODY)
        argv = [str(self._bin / "initdb"), "-D", str(self._data), "-U", "switchyard", "-A", "trust", "--no-sync"]
        subprocess.run(argv, user=self._user, cwd=folder, check=True, capture_output=True)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        argv = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), "-k", str(self.folder)]
        with (self.folder / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, "-h", "127.0.0.1", "-F"], user=self._user, cwd=self.folder, stdout=log, stderr=log
            )
        wait_until(self._answers, "PostgreSQL to answer")

    def stop(self) -> None:
        """At once: connections are cut, as when it crashes."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres(bin_folder: Path) -> Iterator[Postgres]:
    """In a folder that its own user may enter, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-postgres-"))
    server = Postgres(folder, bin_folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
