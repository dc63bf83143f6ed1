"""What the router of this process saw: told live ten times a second, and handed over for good when a request ends."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import orjson
from django.conf import settings

from console import valkey
from console.gateway import describe
from console.gateway.gaps import DEFAULT_GAP_LIMIT_MS, Harvest, Watch
from console.gateway.outbox import Fields, Outbox
from console.gateway.seam import Router
from console.gateway.table import Names
from console.live import bus
from console.live.events import Event
from console.traffic import wire
from routing.record import Record

LOOK_EVERY_S = 0.1
RETRY_AFTER_S = 0.5
RECORDS_KEPT_BYTES = 32 * 2**20
LIVE_KEPT_BYTES = 4 * 2**20
BATCH = 500
BACKLOG_LIMIT = 200_000
"""Records waiting in Valkey for the worker. Above, they wait here instead, so that its memory stays bounded."""


class Reports:
    """The router's observer. Its methods return at once; two loops look at the running requests and deliver."""

    def __init__(self, source: str, names: Callable[[], Names]) -> None:
        self._source, self._names = source, names
        self._watches: dict[int, Watch] = {}
        self._harvests: dict[tuple[str, str], Harvest] = {}
        """By deployment name and server id."""
        self._events: dict[int, list[Event]] = {}
        """By deployment id, since the last look."""
        self._batches = 0
        self._backlog = 0
        self.live = Outbox(LIVE_KEPT_BYTES)
        self.records = Outbox(RECORDS_KEPT_BYTES)

    def first_token(self, record: Record) -> None:
        self._tell(record, describe.first_token(record, self._names()))

    def finished(self, record: Record) -> None:
        watch = self._watches.pop(id(record), None) or Watch(record)
        self._take(watch)
        names = self._names()
        self._tell(record, {"type": "request", "request": describe.request_row(record, names)})
        encoded = orjson.dumps(describe.finished(record, names))
        self.records.put({"r": encoded}, len(encoded))

    async def watch(self, router: Router) -> None:
        while True:
            self.look(router)
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self, router: Router) -> None:
        """Takes what has come since the last look; costs one pass over the running requests."""
        known, self._watches = self._watches, {}
        for running in router.active:
            record = running.record
            if record.finished_ms is None:
                watch = known.get(id(record)) or Watch(record)
                self._watches[id(record)] = watch
                self._take(watch)
        self._sum_up_gaps()
        self._hand_over()

    def _take(self, watch: Watch) -> None:
        record = watch.record
        if len(record.gaps_ms) > watch.taken:
            watch.take(self._harvests.setdefault((record.deployment, record.decode_server or ""), Harvest()))
        if not watch.long_prompt_told and (event := describe.long_prompt(record, self._names(), self._long_tokens)):
            watch.long_prompt_told = True
            self._tell(record, event)

    @property
    def _long_tokens(self) -> int:
        return int(settings.LONG_PROMPT_TOKENS)

    def _tell(self, record: Record, event: Event) -> None:
        """A request for a model that nobody serves has no page to show it on; its record is kept all the same."""
        deployment_id = self._names().deployment_ids.get(record.deployment)
        if deployment_id is not None:
            self._events.setdefault(deployment_id, []).append(event)

    def _sum_up_gaps(self) -> None:
        harvests, self._harvests = self._harvests, {}
        names, now = self._names(), time.time()
        for (deployment, server_id), harvest in harvests.items():
            deployment_id, server = names.deployment_ids.get(deployment), names.servers.get(server_id)
            if deployment_id is None or server is None:
                continue
            limit_ms = names.gap_limits_ms.get(deployment, DEFAULT_GAP_LIMIT_MS)
            event = harvest.event(server.name, server.role, now, limit_ms)
            self._events.setdefault(deployment_id, []).append(event)

    def _hand_over(self) -> None:
        events, self._events = self._events, {}
        for deployment_id, batch in events.items():
            self._batches += 1
            fields = {**bus.entry(deployment_id, batch), "s": self._source, "n": self._batches}
            self.live.put(fields, len(fields["e"]))

    async def deliver(self) -> None:
        """Sends what waits, as soon as it waits. At least once: readers know repeated batches by their number."""
        async with valkey.async_client() as client:
            while True:
                try:
                    await self.send(client)
                except valkey.Down:
                    await asyncio.sleep(RETRY_AFTER_S)
                await asyncio.sleep(LOOK_EVERY_S)

    async def send(self, client: valkey.AsyncClient) -> None:
        """All that waits, in batches; records only while the worker keeps up. Raises `valkey.Down` errors."""
        while True:
            live = self.live.first(BATCH)
            records = self.records.first(BATCH) if self._backlog <= BACKLOG_LIMIT else []
            if not live and not self.records:
                return
            self._backlog = await self._send_batch(client, live, records)
            self.live.delivered(live)
            self.records.delivered(records)
            if not live and not records:
                return

    async def _send_batch(self, client: valkey.AsyncClient, live: list[Fields], records: list[Fields]) -> int:
        """Returns how many records now wait for the worker."""
        async with client.pipeline(transaction=False) as pipe:
            for fields in live:
                pipe.xadd(bus.stream(), fields, minid=bus.oldest_id(), approximate=True)
            for fields in records:
                pipe.xadd(wire.stream(), fields)
            pipe.xlen(wire.stream())
            answers = await pipe.execute()
        return int(answers[-1])

    async def close(self) -> None:
        """The last words of this process; what Valkey does not take now is lost."""
        with suppress(*valkey.Down):
            async with valkey.async_client() as client:
                await self.send(client)
