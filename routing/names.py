"""The names under which servers answer beside their deployment's own: further served names, and LoRA adapters.

Servers list them in their model cards, and adapters come and go while a server runs. So all servers are asked when a
request names what no deployment is called, before it is refused, and from time to time while such names are in use. A
deployment's own name needs none of this, and is never another's.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Final

from routing.backend import Backend
from routing.cards import Card, ask_cards
from routing.choose import Layout, narrowed
from routing.errors import Answered, LegError, TimedOut
from routing.table import EMPTY, Deployment, Table

FRESH_S: Final = 15.0
"""How old what servers said may be before they are asked again, beside the request that uses it."""
LEAST_REST_S: Final = 0.05
REST_PER_SERVER_S: Final = 0.0025
"""Between the beginnings of two rounds of questions, however many requests for unknown names come."""
ANSWER_WITHIN_S: Final = 2.0
HARDLY_WITHIN_S: Final = 0.2
"""How long one is waited for that is silent, or did not answer in time when it was asked last: it would keep every
unknown name from its 404. What it says later is heard all the same."""
NO_SUCH_MODEL: Final = b"does not exist"
"""What an engine says, with 404, to a name that it does not list."""


class Names:
    """What the servers of one router process list. To be used on its event loop."""

    def __init__(self) -> None:
        self._table = EMPTY
        self._backends: Mapping[str, Backend] = {}
        self._index: dict[str, list[str]] | None = None
        """The models of the deployments that list a name; None until somebody asks."""
        self._kept: dict[str, frozenset[str]] = {}
        """By deployment name, what its servers list, and what was listed before those that have not told yet began."""
        self._narrowed: dict[tuple[str, str], tuple[Layout, Layout]] = {}
        """By deployment name and listed name: the layout it was made of, and what was made."""
        self._next: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._asked: dict[Backend, asyncio.Task[None]] = {}
        """The questions under way."""
        self._round_at = float("-inf")

    def swap(self, table: Table, backends: Mapping[str, Backend]) -> None:
        self._table, self._backends = table, backends
        self._kept = {one.name: self._kept.get(one.name, frozenset()) for one in table.deployments.values()}
        self._changed()

    def close(self) -> None:
        for task in (self._next, self._running, *self._asked.values()):
            if task is not None:
                task.cancel()

    def _changed(self) -> None:
        self._index = None
        self._narrowed.clear()

    # Who answers to a name

    def find(self, table: Table, name: str) -> list[Deployment]:
        """The deployments whose servers list it: first those of which one takes new requests, then by their names."""
        if self._index is None:
            self._index = self._make_index()
        return [table.deployments[model] for model in self._index.get(name, ()) if model in table.deployments]

    def _make_index(self) -> dict[str, list[str]]:
        found: dict[str, list[tuple[bool, str, str]]] = {}
        for model, deployment in self._table.deployments.items():
            accepted = _union(one.names for one in self._of(deployment) if one.server.accepting)
            for name in self._listed(deployment):
                found.setdefault(name, []).append((name not in accepted, deployment.name, model))
        return {name: [model for _, _, model in sorted(rows)] for name, rows in found.items()}

    def _listed(self, deployment: Deployment) -> frozenset[str]:
        """A name is not forgotten while a server is gone that may list it when it is back: that is 503, not 404."""
        backends = self._of(deployment)
        now = _union(backend.names for backend in backends)
        if not backends or any(backend.cards is None for backend in backends):
            now |= self._kept[deployment.name]
        self._kept[deployment.name] = now
        return now

    def _of(self, deployment: Deployment) -> list[Backend]:
        return [self._backends[server.id] for server in deployment.servers]

    def cards_of(self, deployment: Deployment) -> list[Card]:
        """What its servers said last."""
        return [card for backend in self._of(deployment) for card in backend.cards or ()]

    async def narrowed(self, layout: Layout, name: str) -> Layout:
        """Only the servers that list it. One that was never asked is asked before."""
        key = (layout.deployment.name, name)
        known = self._narrowed.get(key)
        if known is None or known[0] is not layout:
            if not all(backend.was_asked for backend in layout.by_id.values()):
                await self.learn()
            known = self._narrowed[key] = (layout, narrowed(layout, name))
        if time.monotonic() - self._round_at > FRESH_S:
            self._ask_again()
        return known[1]

    def disowns(self, backend: Backend, name: str, error: LegError) -> bool:
        """The server refused the request because it does not list the name any more: another may."""
        if not (isinstance(error, Answered) and error.status == 404 and NO_SUCH_MODEL in error.body):
            return False
        backend.names -= {name}
        self._changed()
        self._ask_again()
        return True

    # Asking

    async def learn(self) -> None:
        """Returns once a round of questions that began after this call is over."""
        await asyncio.shield(self._ask_again())

    async def look(self, at_most_s: float) -> None:
        """Likewise, or sooner when that takes too long."""
        await asyncio.wait([self._ask_again()], timeout=at_most_s)

    def _ask_again(self) -> "asyncio.Task[None]":
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._round(self._running))
        return self._next

    async def _round(self, before: "asyncio.Task[None] | None") -> None:
        """One at a time, and one more that waits for it: whoever comes meanwhile waits for that one."""
        if before is not None:
            await asyncio.wait([before])
        rest_s = max(LEAST_REST_S, REST_PER_SERVER_S * len(self._backends))
        await asyncio.sleep(self._round_at + rest_s - time.monotonic())
        self._running, self._next = self._next, None
        self._round_at = time.monotonic()
        asked = {backend: self._ask(backend) for backend in self._backends.values()}
        if not asked:
            return
        waited_for = [task for backend, task in asked.items() if not _hardly_answers(backend)]
        await asyncio.wait(asked.values(), timeout=HARDLY_WITHIN_S)
        if waited_for:
            await asyncio.wait(waited_for)

    def _ask(self, backend: Backend) -> "asyncio.Task[None]":
        """One question at a time to each."""
        if backend not in self._asked:
            self._asked[backend] = asyncio.get_running_loop().create_task(self._hear(backend))
        return self._asked[backend]

    async def _hear(self, backend: Backend) -> None:
        """A server that does not answer lists what it did before."""
        backend.was_asked, known = True, backend.cards is not None
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                backend.cards = await ask_cards(backend)
        except (LegError, TimeoutError) as error:
            backend.was_late = isinstance(error, TimedOut | TimeoutError)
            return
        finally:
            del self._asked[backend]
        backend.was_late = False
        names = frozenset(name for card in backend.cards if isinstance(name := card.get("id"), str))
        if names != backend.names or not known:
            backend.names = names
            self._changed()


def _hardly_answers(backend: Backend) -> bool:
    return backend.was_late or backend.is_silent(time.monotonic())


def _union(parts: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*parts)
