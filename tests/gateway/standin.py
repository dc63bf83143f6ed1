"""A router that carries nothing: tests put into it what a real one would show."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from routing.record import Record
from routing.table import EMPTY, Table


@dataclass
class StandInLoad:
    inflight: int = 0
    handoffs: int = 0


@dataclass
class StandInCircuit:
    state: str = "closed"
    last_error: str = ""
    is_silent: bool = False


@dataclass
class StandInRunning:
    record: Record


@dataclass
class StandInRouter:
    table: Table = EMPTY
    swaps: int = 0
    active: list[StandInRunning] = field(default_factory=list)
    carried: dict[str, StandInLoad] = field(default_factory=dict)
    broken: dict[str, StandInCircuit] = field(default_factory=dict)
    observed: list[tuple[str, float, int, int]] = field(default_factory=list)

    def swap(self, table: Table) -> None:
        self.table = table
        self.swaps += 1

    def loads(self) -> Mapping[str, StandInLoad]:
        return self.carried

    def circuits(self) -> Mapping[str, StandInCircuit]:
        return self.broken

    def observe(self, server_id: str, *, kv_usage: float, waiting: int, running: int) -> None:
        self.observed.append((server_id, kv_usage, waiting, running))

    def run(self, record: Record) -> None:
        self.active.append(StandInRunning(record))
