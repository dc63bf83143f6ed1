"""What every router process has in flight. Each says it twice a second; one that falls silent is forgotten."""

import json
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from console import valkey
from console.fleet.models import Server

REPORT_EVERY_S = 0.5
SILENT_AFTER_S = 10.0
"""A router that has not reported for so long counts as ended."""


@dataclass(frozen=True, slots=True)
class RouterLoad:
    inflight: int = 0
    handoffs: int = 0
    avoided: str = ""
    """Why a router sends it nothing for a while (what failed last); empty while it is used."""
    is_silent: bool = False
    """It has work, and a router has long had no token of it."""

    def __add__(self, other: "RouterLoad") -> "RouterLoad":
        return RouterLoad(
            self.inflight + other.inflight,
            self.handoffs + other.handoffs,
            self.avoided or other.avoided,
            self.is_silent or other.is_silent,
        )

    @property
    def is_idle(self) -> bool:
        return self.inflight == 0 and self.handoffs == 0


@dataclass(frozen=True, slots=True)
class RouterInfo:
    id: str
    epoch: int
    """Of the table it serves."""
    age_s: float
    """Since its last report."""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """One report as it stands in Valkey. `loads` is by server id, without those of which there is nothing to say."""

    id: str
    epoch: int
    at: float
    loads: Mapping[int, RouterLoad]

    def encode(self) -> str:
        loads = {server: astuple(load) for server, load in self.loads.items()}
        return json.dumps({"id": self.id, "epoch": self.epoch, "at": self.at, "loads": loads})

    @classmethod
    def decode(cls, raw: bytes) -> "RouterReport":
        said: dict[str, Any] = json.loads(raw)
        loads = {int(server): RouterLoad(*counts) for server, counts in said["loads"].items()}
        return cls(said["id"], said["epoch"], said["at"], loads)


def members_key() -> str:
    """A sorted set: router id by the Unix time of its last report."""
    return valkey.key("routers")


def report_key(router_id: str) -> str:
    return valkey.key("router", router_id)


def read() -> dict[int, RouterLoad]:
    """Summed over the routers, by server id; servers without load are missing. Empty when Valkey does not answer."""
    try:
        return total(_reports())
    except valkey.Down:
        return {}


def avoided_in(told: Mapping[int, RouterLoad]) -> dict[int, str]:
    """Why routers send a server nothing for a while, by its id."""
    return {server: load.avoided for server, load in told.items() if load.avoided}


def routers() -> list[RouterInfo]:
    """The living router processes. Empty when Valkey does not answer."""
    try:
        reports = _reports()
    except valkey.Down:
        return []
    now = time.time()
    return [RouterInfo(report.id, report.epoch, max(0.0, now - report.at)) for report in reports]


def drained(server: Server) -> bool:
    """Every living router serves a table in which `server` takes nothing new, and none has anything on it.

    False while Valkey does not answer: not knowing is no reason to stop a server. Without any router, true once a
    living one would have reported.
    """
    try:
        reports = _reports()
    except valkey.Down:
        return False
    if server.drain_epoch is None:
        return False
    if not reports:
        return timezone.now() - server.state_since > timedelta(seconds=SILENT_AFTER_S)
    return all(
        report.epoch >= server.drain_epoch and report.loads.get(server.pk, RouterLoad()).is_idle for report in reports
    )


def total(reports: list[RouterReport]) -> dict[int, RouterLoad]:
    loads: dict[int, RouterLoad] = {}
    for report in reports:
        for server, load in report.loads.items():
            loads[server] = loads.get(server, RouterLoad()) + load
    return loads


def _reports() -> list[RouterReport]:
    client = valkey.client()
    members: Any = client.zrange(members_key(), 0, -1)
    return _decoded(client.mget(_keys(members))) if members else []


async def reports(client: valkey.AsyncClient) -> list[RouterReport]:
    """For code on an event loop. Raises `valkey.Down` errors."""
    members: Any = await client.zrange(members_key(), 0, -1)
    return _decoded(await client.mget(_keys(members))) if members else []


def _keys(members: list[bytes]) -> list[str]:
    return [report_key(member.decode()) for member in members]


def _decoded(found: list[Any]) -> list[RouterReport]:
    return [RouterReport.decode(raw) for raw in found if raw is not None]
