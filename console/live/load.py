"""Counts that change too often for whole cards: twice a second, for all viewers together."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from django.db import Error

from console import valkey
from console.gateway import loads
from console.gateway.loads import RouterLoad
from console.live.collect import Collector
from console.live.events import LoadEvent

LOOK_EVERY_S = 0.5
REPEAT_AFTER_S = 2.0
"""Also without a change: a card that was drawn anew meanwhile may hold older counts."""

Engines = Mapping[int, Mapping[str, float | None]]
"""By server id: what its engine last said and when (`engine_at`)."""


class LoadWatch:
    """`servers` gives the deployment id of each server, `engines` the newest figures of each engine; `draw` publishes
    the whole card of a server."""

    def __init__(
        self,
        collector: Collector,
        servers: Callable[[], Mapping[int, int]],
        engines: Callable[[], Engines],
        draw: Callable[[int], Awaitable[None]],
    ) -> None:
        self._collector, self._servers, self._engines, self._draw = collector, servers, engines, draw
        self._told: dict[int, tuple[LoadEvent, float]] = {}
        self._shunned: set[int] = set()

    async def follow(self) -> None:
        async with valkey.async_client() as client:
            while True:
                with suppress(*valkey.Down):
                    await self.look(loads.total(await loads.reports(client)))
                await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, router_loads: Mapping[int, RouterLoad]) -> None:
        self.tell(router_loads)
        shunned = {server_id for server_id, load in router_loads.items() if load.avoided or load.is_silent}
        changed, self._shunned = shunned ^ self._shunned, shunned
        with suppress(Error):  # the card says it when the database is back
            for server_id in changed:
                await self._draw(server_id)

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
    if (engine_at := engine.get("engine_at")) is not None:
        event["engine_at"] = round(engine_at, 1)
    return event
