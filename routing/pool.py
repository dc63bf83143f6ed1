"""The connections to one server, kept for a moment between requests."""

import asyncio
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from routing.bodies import Sendable
from routing.client import Connection, Stale
from routing.errors import ConnectFailed, ConnectionLost, ServerBusy, TimedOut

IDLE_LIMIT_S = 4.0
"""Engines close idle connections after 5 s; ours go first, so that no request is sent into a closing one."""


class Pool:
    """The connections to one server. `limit` counts those in use and those being opened."""

    def __init__(self, name: str, url: str, limit: int) -> None:
        parts = urlsplit(url)
        self.name = name
        self.url = url
        self.limit = limit
        self.prefix = parts.path.rstrip("/")
        self.host = parts.netloc.rpartition("@")[2].encode()
        self._address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
        self._tls = True if parts.scheme == "https" else None
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._opening = 0
        self._retired = False
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        return len(self._busy) + self._opening

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def open(
        self,
        method: str,
        request: Sendable,
        *,
        connect_s: float,
        first_byte_s: float | None,
        before_send: Callable[[Connection], None] | None = None,
        only_once: bool = False,
    ) -> Connection:
        """Sends a request and waits for the head of its answer.

        `before_send` is called with a connection in hand and may raise. Raises `LegError`; when cancelled, the
        connection is closed, so that the server stops working.

        A kept connection that the server has closed before it got the request is replaced by a new one, once; not if
        the request may be sent `only_once`, for nobody can tell that from a server that dies of it.
        """
        kept = self._kept()
        while True:
            connection = kept or await self._connect(connect_s)
            self._busy.add(connection)
            try:
                if before_send is not None:
                    before_send(connection)
                await self._send(connection, method, request, first_byte_s)
            except Stale as error:
                self.take_back(connection)
                if only_once:
                    raise ConnectionLost(
                        f"{self.name} closed the connection without answering", before_answer=True
                    ) from error
                kept = None
            except BaseException:
                self.take_back(connection)
                raise
            else:
                return connection

    async def _send(self, connection: Connection, method: str, request: Sendable, first_byte_s: float | None) -> None:
        """Returns when the head of the answer is there. Its future is in no name: it may hold an error, which refers to
        this frame."""
        if first_byte_s is None:
            await connection.send(method, request)
            return
        try:
            async with asyncio.timeout(first_byte_s):
                await connection.send(method, request)
        except TimeoutError as error:
            raise TimedOut(f"{self.name} sent no byte within the first-byte limit of {first_byte_s:g} s") from error

    def _kept(self) -> Connection | None:
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            assert connection.transport is not None
            if now - connection.idle_since < IDLE_LIMIT_S and not connection.transport.is_closing():
                return connection
            connection.close()
        return None

    async def _connect(self, connect_s: float) -> Connection:
        if self.in_use >= self.limit:
            raise ServerBusy(
                f"{self.name} has {self.limit} requests under way, its limit of connections. Try again soon, or raise "
                "the limit in the deployment's policy."
            )
        self._opening += 1
        try:
            async with asyncio.timeout(connect_s):
                connection = Connection(self)
                await asyncio.get_running_loop().create_connection(
                    lambda: cast(asyncio.Protocol, connection), *self._address, ssl=self._tls
                )
        except TimeoutError as error:
            raise TimedOut(f"{self.name} took no connection within the connect limit of {connect_s:g} s") from error
        except OSError as error:
            raise ConnectFailed(f"{self.name} takes no connection: {error}") from error
        finally:
            self._opening -= 1
        return connection

    def take_back(self, connection: Connection) -> None:
        if connection not in self._busy:
            return
        self._busy.discard(connection)
        if self._retired or not connection.can_be_kept():
            connection.close()
            return
        connection.rest()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_LIMIT_S, self._close_old)

    def forget(self, connection: Connection) -> None:
        """The connection is gone. One in use stays counted until its request gives it back."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _close_old(self) -> None:
        limit = time.monotonic() - IDLE_LIMIT_S
        for connection in [idle for idle in self._idle if idle.idle_since <= limit]:
            self._idle.remove(connection)
            connection.close()
        self._sweep = None
        if self._idle:
            wait_s = max(0.05, self._idle[0].idle_since - limit)
            self._sweep = asyncio.get_running_loop().call_later(wait_s, self._close_old)

    def retire(self) -> None:
        """Keeps no connection any more: idle ones close now, those in use when their request is over."""
        self._retired = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connection in self._idle:
            connection.close()
        self._idle = []
