"""Which servers do a request: pure choice over what is known of them at this moment.

Among few candidates the least busy wins, ties by lot. Among many, the less busy of two drawn by lot: as even in
practice, and the cost does not grow with the number of servers.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from routing.affinity import Memory
from routing.backend import Backend
from routing.errors import Refusal
from routing.record import RouteKind
from routing.table import Deployment, Policy

LOOK_AT_ALL: Final = 8
"""Up to this many candidates are all compared."""
DRAWS: Final = 6
BYTES_PER_TOKEN: Final = 4.0
CACHED_IN_STREAMS: Final = 1.5
"""What a cached prompt is worth where costs are streams, however long it is: one stream more on its server. A prompt's
beginning that all requests share would else send them all to one."""
RETRY_AFTER_S: Final = 2.0

Cost = Callable[[Backend, float], float]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the choice needs to know of a request."""

    prompt_tokens: int = 0
    whole: str | None = None
    """Why one server must do all of it; None when it can be split."""
    only: str | None = None
    """The server that holds what the request is about; no other can serve it."""
    session: str | None = None
    prefix: Sequence[tuple[int, int]] = ()
    """(bytes covered, key) of the prompt's beginnings, shortest first."""


@dataclass(frozen=True, slots=True)
class Choice:
    route: RouteKind
    reason: str
    decode: Backend
    """The server that answers."""
    prefill: Backend | None = None


@dataclass(slots=True)
class Layout:
    """A deployment with its backends by role; made once per table."""

    deployment: Deployment
    model: str
    """The name by which it was asked for."""
    prefill: tuple[Backend, ...]
    decode: tuple[Backend, ...]
    plain: tuple[Backend, ...]
    by_id: dict[str, Backend] = field(default_factory=dict)
    partners: dict[str, tuple[Backend, ...]] = field(default_factory=dict)
    """Decode servers that form a verified pair, by prefill server id."""
    sessions: Memory = field(default_factory=Memory)
    prefixes: Memory = field(default_factory=Memory)

    @property
    def policy(self) -> Policy:
        return self.deployment.policy


def lay_out(deployment: Deployment, backends: Sequence[Backend]) -> Layout:
    by_role = {
        role: tuple(backend for backend in backends if backend.server.role == role)
        for role in ("prefill", "decode", "plain")
    }
    layout = Layout(deployment, deployment.model, by_role["prefill"], by_role["decode"], by_role["plain"])
    layout.by_id = {backend.id: backend for backend in backends}
    if deployment.pairs is None:
        layout.partners = dict.fromkeys((prefill.id for prefill in layout.prefill), layout.decode)
    else:
        layout.partners = _partners(layout, deployment.pairs)
    return layout


def narrowed(layout: Layout, name: str) -> Layout:
    """With the servers that list `name` only, and what is remembered of all of them."""
    listing = [backend for backend in layout.by_id.values() if name in backend.names]
    narrow = lay_out(layout.deployment, listing)
    narrow.model = name
    narrow.sessions, narrow.prefixes = layout.sessions, layout.prefixes
    return narrow


def _partners(layout: Layout, pairs: frozenset[tuple[str, str]]) -> dict[str, tuple[Backend, ...]]:
    found: dict[str, list[Backend]] = {prefill.id: [] for prefill in layout.prefill}
    for prefill_id, decode_id in pairs:
        decode = layout.by_id.get(decode_id)
        if prefill_id in found and decode is not None and decode.server.role == "decode":
            found[prefill_id].append(decode)
    return {prefill_id: tuple(decodes) for prefill_id, decodes in found.items()}


class Chooser:
    """One choice: the layout, the moment, and the servers that failed this request already."""

    def __init__(self, layout: Layout, wish: Wish, now: float, avoid: frozenset[str] = frozenset()) -> None:
        self._layout = layout
        self._wish = wish
        self._now = now
        self._avoid = avoid
        self._takes_silent = self._takes_failing = False

    def choose(self) -> Choice:
        """A silent server only where no other can do it, in whatever way; after that one that answered with errors
        lately. Raises `Refusal` (503) when nothing can."""
        try:
            return self._choose()
        except Refusal:
            if not self._takes_more():
                raise
        return self.choose()

    def _takes_more(self) -> bool:
        """Whether from now on servers may be taken that were left out so far."""
        backends = self._layout.by_id.values()
        if not self._takes_silent and any(backend.is_silent(self._now) for backend in backends):
            self._takes_silent = True
        elif not self._takes_failing and any(backend.is_last_resort for backend in backends):
            self._takes_failing = True
        else:
            return False
        return True

    def _choose(self) -> Choice:
        policy, wish = self._layout.policy, self._wish
        if wish.only is not None:
            return self._only(wish.only)
        if wish.whole is not None:
            return self._whole("direct", wish.whole)
        if self._layout.plain and self._takes_plain(policy):
            return self._plain_or_split()
        if wish.prompt_tokens < policy.short_prompt_tokens and (choice := self._short()) is not None:
            return choice
        return self._split() or self._without_pair(self.why_no_pair())

    def _only(self, server_id: str) -> Choice:
        backend = self._layout.by_id.get(server_id)
        if backend is None:
            raise Refusal(404, "The server that held this response is gone.", kind="NotFoundError")
        if not self._is_usable(backend):
            raise self._refusal(f"{self._why_not(backend)}, and it alone holds this response")
        return Choice("direct", "stored response", backend)

    def _takes_plain(self, policy: Policy) -> bool:
        if not self._layout.prefill and not self._layout.decode:
            return True
        return random.random() * 100 < policy.plain_share_percent

    def _plain_or_split(self) -> Choice:
        picked = self._near(self._layout.plain, Backend.decode_cost)
        if picked is not None:
            return Choice("plain", picked[1], picked[0])
        return self._split() or self._without_pair(self.why_no_pair())

    def _short(self) -> Choice | None:
        server = self._best(self._layout.decode, Backend.decode_cost)
        gate = self._layout.policy.busy_decode_streams
        if server is None or (gate is not None and server.load.all_streams > gate):
            return None
        return Choice("short prompt", "short prompt", server)

    def _split(self) -> Choice | None:
        candidates: Sequence[Backend] = self._layout.prefill
        for _ in range(len(candidates)):
            picked = self._near(candidates, Backend.prefill_cost, math.inf)
            if picked is None:
                return None
            prefill, reason = picked
            decode = self._best(self._layout.partners[prefill.id], self._decode_cost)
            if decode is not None:
                return Choice("split", reason, decode, prefill)
            candidates = [other for other in candidates if other is not prefill]
        return None

    def _without_pair(self, why: str) -> Choice:
        if self._layout.policy.when_no_pair == "refuse" and (self._layout.prefill or self._layout.decode):
            raise self._refusal(f"{why}, and this deployment is set to refuse rather than fall back")
        if any(map(self._is_full, self._layout.prefill)):
            # Too much work is no reason to compute prompts where they hold up running streams.
            picked = self._near(self._layout.plain, self._decode_cost)
            if picked is None:
                raise self._refusal(why)
            return Choice("fallback", f"fallback: {why}", picked[0])
        return self._whole("fallback", f"fallback: {why}")

    def _is_full(self, backend: Backend) -> bool:
        """It works, and has as much to do as it may be given."""
        return backend.is_full and backend.server.accepting and backend.circuit.allows(self._now)

    def _whole(self, route: RouteKind, reason: str) -> Choice:
        for pool in (self._layout.plain, self._layout.decode):
            picked = self._near(pool, self._decode_cost)
            if picked is not None:
                return Choice(route, reason, picked[0])
        raise self._refusal(self._why_nobody(("plain", self._layout.plain), ("decode", self._layout.decode)))

    # Among candidates

    def _near(
        self, candidates: Sequence[Backend], cost: Cost, most_saved: float = CACHED_IN_STREAMS
    ) -> tuple[Backend, str] | None:
        """The server that has this session or prompt cached, unless another would still be sooner.

        `most_saved`: what a cache is worth at most, in the unit of `cost`."""
        best = self._best(candidates, cost)
        if best is None:
            return None
        for server_id, saved_tokens, word in self._memories():
            near = best if best.id == server_id else self._lively_by_id(candidates, server_id)
            saved = min(saved_tokens, most_saved)
            if near is not None and cost(near, self._now) - saved <= cost(best, self._now):
                return near, f"{word} on {near.name}"
        return best, "least busy"

    def _memories(self) -> list[tuple[str, float, str]]:
        policy, wish, found = self._layout.policy, self._wish, []
        if policy.session_affinity and wish.session is not None:
            server_id = self._layout.sessions.get(wish.session)
            if server_id is not None:
                found.append((server_id, float(max(1, wish.prompt_tokens)), "session"))
        if policy.prefix_affinity:
            for length, key in reversed(wish.prefix):
                server_id = self._layout.prefixes.get(key)
                if server_id is not None:
                    found.append((server_id, length / BYTES_PER_TOKEN, "prefix"))
                    break
        return found

    def _lively_by_id(self, candidates: Sequence[Backend], server_id: str) -> Backend | None:
        """None also for one that is silent: another can do it, and what is cached there helps nobody."""
        backend = self._layout.by_id.get(server_id)
        if backend is None or backend.server.role != candidates[0].server.role:
            return None
        return backend if self._is_lively(backend) else None

    def _best(self, candidates: Sequence[Backend], cost: Cost) -> Backend | None:
        if len(candidates) > LOOK_AT_ALL:
            drawn = self._draw_two(candidates, cost)
            if drawn is not None:
                return drawn
        found = [backend for backend in candidates if self._is_lively(backend)]
        if not found and self._takes_silent:
            found = [backend for backend in candidates if self._is_open(backend)]
        if len(found) < 2:
            return found[0] if found else None
        return min(found, key=lambda backend: (cost(backend, self._now), random.random()))

    def _draw_two(self, candidates: Sequence[Backend], cost: Cost) -> Backend | None:
        found: Backend | None = None
        for _ in range(DRAWS):
            backend = candidates[int(random.random() * len(candidates))]
            if backend is found or not self._is_lively(backend):
                continue
            if found is not None:
                return found if cost(found, self._now) <= cost(backend, self._now) else backend
            found = backend
        return found

    def _is_usable(self, backend: Backend) -> bool:
        """It may be taken, be it silent, where such are taken."""
        return self._is_open(backend) if self._takes_silent else self._is_lively(backend)

    def _is_lively(self, backend: Backend) -> bool:
        return self._is_open(backend) and not backend.is_silent(self._now)

    def _is_open(self, backend: Backend) -> bool:
        """Whether it is silent is another question."""
        if backend.id in self._avoid:
            return False
        return backend.is_usable(self._now) or (self._takes_failing and backend.is_last_resort)

    def _decode_cost(self, backend: Backend, now: float) -> float:
        """Streams, weighed up to threefold by a full KV cache. A server of unknown KV use is taken as half full."""
        usage = backend.kv_usage(now)
        return (backend.load.all_inflight + 1) * (1 + 2 * (0.5 if usage is None else usage) ** 2)

    # In words

    def why_no_pair(self) -> str:
        layout = self._layout
        if not layout.prefill or not any(map(self._is_usable, layout.prefill)):
            return self._why_nobody(("prefill", layout.prefill))
        if not layout.decode or not any(map(self._is_usable, layout.decode)):
            return self._why_nobody(("decode", layout.decode))
        return "no usable pair of prefill and decode server is verified"

    def _why_nobody(self, *pools: tuple[str, Sequence[Backend]]) -> str:
        present = [(role, pool) for role, pool in pools if pool]
        if not present:
            return f"no {' or '.join(role for role, _ in pools)} server is there"
        role, pool = present[-1]
        reasons = "; ".join(sorted({self._why_not(backend) for backend in pool})[:4])
        return f"no {role} server is usable ({reasons})"

    def _why_not(self, backend: Backend) -> str:
        if not backend.server.accepting:
            return f"{backend.name} is draining"
        if backend.is_full:
            return f"{backend.name} is at its limit of {backend.pool.limit} requests"
        if not backend.circuit.allows(self._now):
            return f"{backend.name} failed lately: {backend.circuit.last_error}"
        if backend.is_silent(self._now):
            return f"{backend.name} has work and brings no answers"
        return f"{backend.name} failed this request"

    def _refusal(self, why: str) -> Refusal:
        starting = " A server is starting." if self._layout.deployment.starting else ""
        return Refusal(
            503,
            f"{self._layout.model} cannot be served now: {why}.{starting} Try again in a few seconds.",
            kind="ServiceUnavailableError",
            retry_after_s=RETRY_AFTER_S,
        )
