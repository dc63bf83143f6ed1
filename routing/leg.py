"""One request to one server: what it takes (a connection, counts, the circuit's probe) it gives back once."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from routing.backend import Backend
from routing.bodies import LARGE_BYTES, Sendable, length
from routing.circuit import Failure
from routing.client import Connection
from routing.errors import Answered, ConnectFailed, Headers, KeyRefused, LegError, StreamError, TimedOut
from routing.http1 import Head, request_head
from routing.large import names_addresses
from routing.loads import take
from routing.table import Timeouts

MAX_ANSWER_BYTES: Final = 512 * 2**20
MAX_ERROR_BYTES: Final = 8 * 2**20


class Leg:
    """`with Leg(…) as leg`: whatever way out, cancellation included, the server is left as it was found."""

    __slots__ = (
        "_blamed",
        "_gave_tokens",
        "_is_aside",
        "_is_for_engine",
        "_probes",
        "_shows_tokens",
        "_taken",
        "_timeouts",
        "backend",
        "connection",
    )

    def __init__(
        self,
        backend: Backend,
        timeouts: Timeouts,
        *,
        prompt_tokens: int = 0,
        streams: int = 0,
        is_aside: bool = False,
        is_for_engine: bool = True,
        shows_tokens: bool = False,
    ) -> None:
        """`is_aside`: a question of our own within a short time. That the server is slow to answer it, or cannot, says
        nothing of what it does with requests; that it takes no connection does. `is_for_engine`: what becomes of it
        tells whether the engine does its work. `shows_tokens`: a stream, in which it shows at once."""
        self.backend = backend
        self.connection: Connection | None = None
        self._timeouts = timeouts
        self._taken = take(backend.load, prompt_tokens=prompt_tokens, streams=streams)
        self._gave_tokens = False
        self._blamed: LegError | None = None
        self._is_aside = is_aside
        self._is_for_engine = is_for_engine and not is_aside
        self._shows_tokens = shows_tokens
        if self._is_for_engine:
            backend.life.begin(shows_tokens=shows_tokens)
        self._probes = not is_aside and backend.circuit.begin()

    def __enter__(self) -> "Leg":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._taken.give_back()
        if self._is_for_engine:
            self._tell_life(error)
        if self.connection is not None:
            self.connection.release()
        self._tell_circuit(error or self._blamed)

    def blame(self, error: LegError) -> None:
        """What went wrong without being raised."""
        self._blamed = error

    def _tell_life(self, error: BaseException | None) -> None:
        life = self.backend.life
        if self.connection is None or isinstance(error, Answered | KeyRefused):
            life.drop(shows_tokens=self._shows_tokens)
        else:
            life.end(time.monotonic(), shows_tokens=self._shows_tokens)

    def _tell_circuit(self, error: BaseException | None) -> None:
        circuit = self.backend.circuit
        if self._is_aside and not isinstance(error, ConnectFailed):
            return
        if error is None or (isinstance(error, Answered) and not error.blames_server):
            circuit.succeed()
        elif isinstance(error, LegError) and error.blames_server and not self._gave_tokens:
            circuit.fail(time.monotonic(), str(error), how=_how(error))
        elif self._probes:
            circuit.abandon()

    @property
    def has_begun_to_answer(self) -> bool:
        return self.connection is not None and self.connection.bytes_received

    def hold(self) -> None:
        """Until `let_go` the server may not go on with it."""
        if self._is_for_engine:
            self.backend.life.hold(time.monotonic(), shows_tokens=self._shows_tokens)

    def let_go(self) -> None:
        if self._is_for_engine:
            self.backend.life.let_go(shows_tokens=self._shows_tokens)

    def gave_tokens(self) -> None:
        """A server that produces tokens is alive, however and whenever this request ends."""
        self._gave_tokens = True
        self.backend.circuit.succeed()

    async def open(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: Sendable | None,
        before_send: Callable[[], None] | None = None,
        *,
        only_once: bool = False,
    ) -> Connection:
        """Sends; returns when a successful head is there. Raises `LegError`, `Answered` for an error status.

        `before_send` is called in the moment of sending and may raise. `only_once`: never sent a second time, even
        where the first most likely arrived nowhere.
        """
        pool, key = self.backend.pool, self.backend.server.api_key
        lines = [(b"host", pool.host), *headers]
        if key is not None:
            lines.append((b"authorization", b"Bearer " + key.encode("latin-1", "replace")))

        def sending(connection: Connection) -> None:
            self.connection = connection
            if self._probes and not connection.uses:
                self.backend.circuit.connected()
            if before_send is not None:
                before_send()

        head = request_head(method, pool.prefix + target, lines, None if body is None else length(body))
        self.connection = await pool.open(
            method,
            joined(head, body),
            connect_s=self._timeouts.connect_s,
            first_byte_s=self._timeouts.first_byte_s,
            before_send=sending,
            only_once=only_once,
        )
        await self._raise_for_status(self.connection, body)
        return self.connection

    @property
    def head(self) -> Head:
        """Of the answer, once `open` returned."""
        assert self.connection is not None
        assert self.connection.head is not None
        return self.connection.head

    async def _raise_for_status(self, connection: Connection, sent: Sendable | None) -> None:
        head = self.head
        if head.status < 400:
            return
        if head.status in (401, 403):
            raise KeyRefused(
                f"{self.backend.name} refused the router's own key ({head.status}). "
                "Ask the operator to set this server's key; the client's key is never sent there."
            )
        raise await self._answered(connection, sent)  # In no name: it would refer to the frame that refers to it.

    async def _answered(self, connection: Connection, sent: Sendable | None) -> Answered:
        head = self.head
        answered = Answered(head.status, head.headers, await self._whole(connection, MAX_ERROR_BYTES))
        if answered.blames_server and sent is not None and await names_addresses(sent):
            answered.blames_server = False  # What it says when it cannot fetch a picture.
        return answered

    @property
    def is_event_stream(self) -> bool:
        """One that can be read on its way: an encoded one is passed on as it is."""
        kind = self.head.get(b"content-type") or b""
        return kind.startswith(b"text/event-stream") and self.head.get(b"content-encoding") is None

    async def read(self) -> bytes:
        """The whole body, which must follow its head within the idle limit."""
        assert self.connection is not None
        body = await self._whole(self.connection, MAX_ANSWER_BYTES)
        if self._is_for_engine:
            self.backend.life.moved_at = time.monotonic()
        return body

    async def _whole(self, connection: Connection, limit_bytes: int) -> bytes:
        body = connection.read(limit_bytes)
        if body.done():
            return body.result()
        try:
            async with asyncio.timeout(self._timeouts.idle_s):
                return await body
        except TimeoutError as error:
            limit_s = self._timeouts.idle_s
            raise TimedOut(
                f"{self.backend.name} did not end its answer within the idle limit of {limit_s:g} s"
            ) from error


def _how(error: LegError) -> Failure:
    if isinstance(error, ConnectFailed):
        return "refused"
    return "answered" if isinstance(error, Answered | StreamError) else "other"


def joined(head: bytes, body: Sendable | None) -> Sendable:
    if isinstance(body, list):
        return [head, *body]
    if body is not None and len(body) > LARGE_BYTES:
        return [head, body]
    return head + body if body else head
