"""What the console needs from a running router. `routing.app.Router` offers it; the loops here depend on no more."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from routing.record import Record
from routing.table import Table


class Load(Protocol):
    @property
    def inflight(self) -> int: ...

    @property
    def handoffs(self) -> int: ...


class Circuit(Protocol):
    """`state` is "closed" while the server is used."""

    @property
    def state(self) -> str: ...

    @property
    def last_error(self) -> str: ...

    @property
    def is_silent(self) -> bool: ...


class Running(Protocol):
    """A request on its way; the gaps of its record grow while it streams."""

    @property
    def record(self) -> Record: ...


class Router(Protocol):
    @property
    def active(self) -> Iterable[Running]: ...

    def swap(self, table: Table) -> None: ...

    def loads(self) -> Mapping[str, Load]: ...

    def circuits(self) -> Mapping[str, Circuit]: ...

    def observe(self, server_id: str, *, kv_usage: float, waiting: int, running: int) -> None: ...
