"""Counts that change too often for whole cards: twice a second, for all viewers together."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from console import valkey
from console.gateway import loads
from console.gateway.loads import RouterLoad
from console.live.collect import Collector
from console.live.events import LoadEvent

LOOK_EVERY_S = 0.5
REPEAT_AFTER_S = 2.0
"""Also without a change: a card that was drawn anew meanwhile may hold older counts."""

Engines = Mapping[int, Mapping[str, float | None]]
"""By server id: what its engine last said (`running`, `waiting`, `kv_usage`, `tokens_per_s`; None is unknown)."""


class LoadWatch:
    """`servers` gives the deployment id of each server, `engines` the newest figures of each engine."""

    def __init__(
        self, collector: Collector, servers: Callable[[], Mapping[int, int]], engines: Callable[[], Engines]
    ) -> None:
        self._collector, self._servers, self._engines = collector, servers, engines
        self._told: dict[int, tuple[LoadEvent, float]] = {}

    async def follow(self) -> None:
        async with valkey.async_client() as client:
            while True:
                with suppress(*valkey.Down):
                    self.tell(loads.total(await loads.reports(client)))
                await asyncio.sleep(LOOK_EVERY_S)

    def tell(self, router_loads: Mapping[int, RouterLoad]) -> None:
        """One event for each server whose counts have changed, or were not told for a while."""
        engines, servers, now = self._engines(), self._servers(), time.monotonic()
        for server_id, deployment_id in servers.items():
            event = load_event(server_id, router_loads.get(server_id, RouterLoad()), engines.get(server_id, {}))
            told, told_at = self._told.get(server_id, (None, 0.0))
            if event != told or now - told_at >= REPEAT_AFTER_S:
                self._told[server_id] = (event, now)
                self._collector.channel(deployment_id).add(event)
        for gone in self._told.keys() - servers.keys():
            del self._told[gone]


def load_event(server_id: int, load: RouterLoad, engine: Mapping[str, float | None]) -> LoadEvent:
    event: LoadEvent = {"type": "load", "id": server_id, "inflight": load.inflight, "handoffs": load.handoffs}
    if (running := engine.get("running")) is not None:
        event["running"] = int(running)
    if (waiting := engine.get("waiting")) is not None:
        event["waiting"] = int(waiting)
    if (kv_usage := engine.get("kv_usage")) is not None:
        event["kv_usage"] = round(kv_usage, 4)
    if (tokens_per_s := engine.get("tokens_per_s")) is not None:
        event["tokens_per_s"] = round(tokens_per_s, 1)
    return event
