"""The database from outside of requests: calls of an event loop's background loops, and what to do while it is away."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

P = ParamSpec("P")
T = TypeVar("T")

Away = (OperationalError, InterfaceError)
"""What a call raises when the database is away, locked for too long, or has just ended. Trying again later can help."""

NEW_FILE_BYTES = 4096
"""No more than its header."""

log = logging.getLogger(__name__)
_waiting: set[str] = set()
_lock = threading.Lock()


class DatabaseThread:
    """One thread, one connection, never on the event loop itself.

    Keeps its connection open between calls and drops it after an error, so a restarted database is found again.

    Calls run one after another: a locked database holds up this thread's callers and nobody else.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"database-{name}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises what `call` raises. When cancelled, the call itself still runs to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: _guarded(call, *args, **kwargs))

    def close(self) -> None:
        self._pool.submit(connections.close_all)
        self._pool.shutdown(wait=False)


def _guarded(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    except Error:
        connections.close_all()
        raise


@contextmanager
def tried_again(what: str) -> Iterator[None]:
    """Around what is done again soon anyway: while the database is away it is left out, which is logged once.

    A line for each attempt would bury the log: there are some every second, for as long as the database is away.
    """
    try:
        yield
    except Away as error:
        _close_idle_connections()
        if _note(what, is_away=True):
            log.warning("%s: waits, the database does not answer: %s", what, in_a_line(error))
    else:
        if _note(what, is_away=False):
            log.warning("%s: goes on, the database answers again", what)


def close_new_file_to_others(connection: BaseDatabaseWrapper, **_: object) -> None:
    """SQLite makes its files as the umask says; a database that was made just now is for its owner alone.

    Receiver of `connection_created`. An older file keeps the mode that somebody gave it.
    """
    if connection.vendor != "sqlite":
        return
    path = Path(str(connection.settings_dict["NAME"]))
    with suppress(OSError):
        if path.stat().st_size > NEW_FILE_BYTES:
            return
        for file in (path, *path.parent.glob(f"{path.name}-*")):
            file.chmod(0o600)


def _close_idle_connections() -> None:
    """Of this thread, but for those inside of somebody's transaction: that ends by itself."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def in_a_line(error: BaseException) -> str:
    """Its first line: PostgreSQL's driver adds questions for whoever runs the database."""
    return str(error).partition("\n")[0]


def _note(what: str, is_away: bool) -> bool:
    """Whether that is news."""
    with _lock:
        if (what in _waiting) == is_away:
            return False
        (_waiting.add if is_away else _waiting.discard)(what)
        return True
