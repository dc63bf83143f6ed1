"""The router: holds the table and what is running, and serves requests as an ASGI application."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from routing.affinity import Memory
from routing.asgi import Receive, Scope, Send
from routing.asgi_app import serve
from routing.asides import Told
from routing.ask import Ask
from routing.attempt import Attempt, Job
from routing.backend import Backend
from routing.budget import Budget
from routing.choose import Choice, Chooser, Layout, lay_out
from routing.circuit import State
from routing.cors import Origins, is_preflight, preflight
from routing.errors import LegError, Refusal
from routing.exchange import Exchange
from routing.handoff import Handoff
from routing.http1 import Headers
from routing.loads import Load, Sample
from routing.metrics import RouterMetrics
from routing.models import model_cards
from routing.names import Names
from routing.paths import is_ours
from routing.probes import probe
from routing.pump import Pump
from routing.record import Observer, Record
from routing.release import end_soon, release
from routing.reply import Request
from routing.shared import Seat
from routing.table import EMPTY, Deployment, Server, Table
from routing.turnstile import Turnstile

MAX_BODY_BYTES: Final = 64 * 2**20
MAX_WAITING = 1000
"""Requests that may wait for a pool that is starting."""


@dataclass(frozen=True, slots=True)
class CircuitView:
    """A server's circuit as the pages show it."""

    state: State
    failures: int
    last_error: str
    retry_in_s: float
    is_silent: bool = False
    """It has work and brings nothing: avoided while there is another."""


class Router:
    """One per process. Every call is to be made on its event loop."""

    def __init__(
        self,
        table: Table = EMPTY,
        observer: Observer | None = None,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        metrics: RouterMetrics | None = None,
        seat: Seat | None = None,
        catch_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`seat`: where it shares counts and memories with other workers of the same router. `catch_up`: returns once
        every change that was made before the call is swapped in, or cannot be known soon."""
        self.table = EMPTY
        self.max_body_bytes = max_body_bytes
        self.metrics = metrics or RouterMetrics()
        self.budget = Budget()
        self.responses = Memory() if seat is None else seat.responses
        """Which server made which stored response."""
        self.catch_up = catch_up or _nothing_newer
        self.names = Names()
        self.origins = Origins()
        self._observer = observer
        self._seat = seat
        self._backends: dict[str, Backend] = {}
        self.layouts: Mapping[str, Layout] = {}
        """By deployment name; replaced with the table, so that a request keeps those it began with."""
        self._active: dict[Exchange, None] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self._swapped: asyncio.Event | None = None
        self._waiting = 0
        self.turnstile = Turnstile()
        self.pump = Pump(self.turnstile)
        self.metrics.watch(self)
        self.swap(table)

    # The table

    def swap(self, table: Table) -> None:
        """Serves `table` from now on. Running requests keep what they began with; a vanished server's idle
        connections are closed, its streams go on."""
        before, self.table = self._backends, table
        self._backends = {}
        for deployment in table.deployments.values():
            for server in deployment.servers:
                limit = deployment.policy.max_connections_per_server
                load = None if self._seat is None else self._seat.loads.get(server.id)
                self._backends[server.id] = _backend(before.get(server.id), server, limit, load)
        for server_id, backend in before.items():
            if self._backends.get(server_id) is not backend:
                backend.pool.retire()
        self.layouts = {deployment.name: self._lay_out(deployment) for deployment in table.deployments.values()}
        self.names.swap(table, self._backends)
        if self._swapped is not None:
            self._swapped.set()
            self._swapped = None

    def _lay_out(self, deployment: Deployment) -> Layout:
        layout = lay_out(deployment, [self._backends[server.id] for server in deployment.servers])
        old = self.layouts.get(deployment.name)
        if old is not None:
            layout.sessions, layout.prefixes = old.sessions, old.prefixes
        elif self._seat is not None:
            layout.sessions, layout.prefixes = self._seat.sessions, self._seat.prefixes
        return layout

    async def wait_for(self, ask: Ask) -> tuple[Layout, Choice]:
        """Waits, if the policy lets it, until a new table makes the request possible, and tells how the servers stand
        by then. Raises `Refusal`."""
        deadline = time.monotonic() + ask.deployment.policy.wait_for_server_s
        self._waiting += 1
        try:
            while True:
                layout = self.layouts.get(ask.deployment.name)
                if layout is None:
                    raise Refusal(404, f"{ask.deployment.model} is not served any more.", kind="NotFoundError")
                if ask.listed is not None:
                    layout = await self.names.narrowed(layout, ask.listed)
                choice = _choice(layout, ask)
                if choice is not None:
                    return layout, choice
                if not await self._next_table(deadline):
                    return layout, Chooser(layout, ask.wish, time.monotonic()).choose()
        finally:
            self._waiting -= 1

    async def _next_table(self, deadline: float) -> bool:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or self._waiting > MAX_WAITING:
            return False
        if self._swapped is None:
            self._swapped = asyncio.Event()
        try:
            # A circuit that closes again tells nobody, so waiting looks again now and then.
            async with asyncio.timeout(min(left_s, 0.5)):
                await self._swapped.wait()
        except TimeoutError:
            return time.monotonic() < deadline
        return True

    # What runs

    @property
    def active(self) -> Iterable[Exchange]:
        """The running requests; each has a `record` that grows while it runs."""
        self.pump.look()
        return tuple(self._active)

    def loads(self) -> dict[str, Load]:
        """By server id; what this process has there."""
        return {server_id: backend.load for server_id, backend in self._backends.items()}

    def circuits(self) -> dict[str, CircuitView]:
        now = time.monotonic()
        return {
            server_id: CircuitView(
                backend.circuit.state(now),
                backend.circuit.failures,
                backend.circuit.last_error,
                backend.circuit.retry_in_s(now),
                backend.is_silent(now),
            )
            for server_id, backend in self._backends.items()
        }

    def connections(self) -> Mapping[str, tuple[int, int, int]]:
        """(in use, idle, limit) by server id."""
        return {key: (b.pool.in_use, b.pool.idle, b.pool.limit) for key, b in self._backends.items()}

    def server_names(self) -> dict[str, str]:
        return {server_id: backend.name for server_id, backend in self._backends.items()}

    def observe(
        self,
        server_id: str,
        *,
        kv_usage: float | None = None,
        waiting: int | None = None,
        running: int | None = None,
    ) -> None:
        """Takes an engine's own figures, fresh now. None is unknown, never zero."""
        backend = self._backends.get(server_id)
        if backend is not None:
            backend.sample = Sample(time.monotonic(), kv_usage, waiting, running)

    async def models(self, request: Request) -> tuple[bytes, Headers]:
        return await model_cards(request, self.table, self._backends, self.names, self.origins)

    async def ask_any(self, request: Request) -> Told:
        """What one server says to a question about no model, a browser's preflight among them."""
        if is_preflight(request):
            return await preflight(request, self.table, self._backends, self.origins)
        return await probe(request, self.table, self._backends)

    async def aclose(self) -> None:
        """Ends what runs and closes every connection."""
        running = [exchange.stop() for exchange in self._active]
        await asyncio.gather(*running, return_exceptions=True)
        await end_soon(self._releases)
        self.names.close()
        for backend in self._backends.values():
            backend.pool.retire()
        self.pump.close()

    # For exchanges

    def enter(self, exchange: Exchange) -> None:
        self._active[exchange] = None

    def leave(self, exchange: Exchange) -> None:
        self._active.pop(exchange, None)
        if exchange.is_aside:
            return
        self.metrics.finished(exchange.record)
        if self._observer is not None:
            self._observer.finished(exchange.record)

    def first_token(self, record: Record) -> None:
        if self._observer is not None:
            self._observer.first_token(record)

    def look_after(self, attempt: Attempt, job: Job, layout: Layout) -> None:
        """A hand-off that nobody fetched: one that no server saw is delivered and ended there, which frees it at once.
        One that a server saw cannot be given to another: the prefill server drops it when its lease is over."""
        handoff = attempt.handoff
        if handoff is None or not handoff.is_open:
            return
        if not handoff.sent:
            task = asyncio.get_running_loop().create_task(self._release(handoff, job, layout))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
            return
        handoff.hold_until_lease()
        job.record.orphaned_handoff = True
        self.metrics.orphaned(job.record.deployment)

    async def _release(self, handoff: Handoff, job: Job, layout: Layout) -> None:
        if await release(handoff, job, layout):
            self.metrics.released(job.record.deployment)
            return
        handoff.hold_until_lease()
        self.metrics.orphaned(job.record.deployment)

    def count_failure(self, choice: Choice, error: LegError, *, on_prefill: bool) -> None:
        self.metrics.leg_failed(choice, error, on_prefill=on_prefill)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """As an ASGI application, of version 3: serves the paths that `routing.paths.is_ours` names; the others get a
        JSON 404."""
        return serve(self, scope, receive, send)


def _choice(layout: Layout, ask: Ask) -> Choice | None:
    try:
        return Chooser(layout, ask.wish, time.monotonic()).choose()
    except Refusal:
        return None


async def _nothing_newer() -> None:
    """Nobody swaps another table in unasked."""


def _backend(old: Backend | None, server: Server, limit: int, load: Load | None) -> Backend:
    """The one that is known already, unless the server was started anew since."""
    if old is None or (old.server.generation, old.server.url) != (server.generation, server.url):
        return Backend(server, limit, load)
    old.server = server
    old.pool.name, old.pool.limit = server.name, limit
    return old


__all__ = ["CircuitView", "Router", "is_ours"]
