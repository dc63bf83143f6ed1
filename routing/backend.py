"""One server as the router knows it: its connections, its load, its circuit. One per start of the server."""

from typing import Any

from routing.circuit import Circuit
from routing.life import Life
from routing.loads import FRESH_S, Load, Sample
from routing.pool import Pool
from routing.table import Server


class Backend:
    """Shared by all requests. `server` follows the table; a new generation gets a new backend."""

    __slots__ = ("cards", "circuit", "life", "load", "names", "pool", "sample", "server", "was_asked", "was_late")

    def __init__(self, server: Server, connections: int, load: Load | None = None) -> None:
        self.server = server
        self.pool = Pool(server.name, server.url, connections)
        self.load = Load() if load is None else load
        self.circuit = Circuit()
        self.life = Life()
        self.sample: Sample | None = None
        self.cards: list[dict[str, Any]] | None = None
        """What it said last of its models; None until it did."""
        self.names: frozenset[str] = frozenset()
        """Under which it answers, by its cards."""
        self.was_asked = False
        """For its cards, whether it answered or not."""
        self.was_late = False
        """It had not answered in time when it was asked last."""

    @property
    def id(self) -> str:
        return self.server.id

    @property
    def name(self) -> str:
        return self.server.name

    def is_usable(self, now: float) -> bool:
        """Whether new work may go there."""
        return self.server.accepting and self.circuit.allows(now) and not self.is_full

    @property
    def is_last_resort(self) -> bool:
        """Left alone after failures, but it answers."""
        return self.server.accepting and self.circuit.answers and not self.is_full

    @property
    def is_full(self) -> bool:
        return self.load.all_inflight >= self.pool.limit

    def is_silent(self, now: float) -> bool:
        return self.life.is_silent(now, is_chosen=self.load.inflight > self.life.held)

    def kv_usage(self, now: float) -> float | None:
        sample = self.sample
        return sample.kv_usage if sample is not None and now - sample.at < FRESH_S else None

    def prefill_cost(self, now: float) -> float:
        """Prompt tokens that a new request would wait for; a request counts a little even when it is short."""
        load = self.load
        return load.all_prompt_tokens + 16 * load.all_inflight + 16 * load.all_handoffs

    def decode_cost(self, now: float) -> float:
        return float(self.load.all_inflight)
