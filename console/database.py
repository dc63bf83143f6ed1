"""ORM calls for the background loops of an event loop: one thread, one connection, never on the loop itself."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import Error, connections

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseThread:
    """Keeps its connection open between calls and drops it after an error, so a restarted database is found again.

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
