"""One loop per web process gathers live events; however many sockets watch, each event is read and encoded once."""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

import orjson

from console import valkey
from console.database import DatabaseThread
from console.fleet.models import Deployment
from console.gateway import loads
from console.live import bus
from console.live.events import Event, Snapshot
from console.live.fanout import Channel, Viewer
from console.live.history import Charts
from console.live.snapshot import Yard, yard
from console.traffic import queries

log = logging.getLogger(__name__)

FRAME_EVERY_S = 0.1
HEARTBEAT_EVERY_S = 2.0
"""A socket is never silent for longer while the stream behind it is well."""
TIDY_EVERY_S = 5.0
READ_WAIT_S = 1.0
RETRY_AFTER_S = 0.5
READ_BATCH = 500
STREAM_FRESH_S = 3.0
REQUESTS_SHOWN = 50


class Collector:
    """Reads the live stream, keeps the last minutes per deployment, and sends frames to the viewers of this process."""

    def __init__(self, database: DatabaseThread) -> None:
        self._database = database
        self.stream = secrets.token_hex(8)
        """Names this numbering: another process, or this one after a restart, has another."""
        self._channels: dict[int, Channel] = {}
        self._position = ""
        self._read_at = float("-inf")
        self._batches_seen: dict[bytes, int] = {}
        """Highest batch number by router: a batch sent twice counts once."""
        self._yards: dict[int, asyncio.Task[Yard | None]] = {}
        self._yard_lock = asyncio.Lock()

    # What comes in

    async def read(self) -> None:
        """Follows the stream from five minutes ago on; resumes where it was after Valkey was away."""
        self._position = self._position or bus.oldest_id()
        async with valkey.async_client(answer_timeout_s=READ_WAIT_S + valkey.ANSWER_TIMEOUT_S) as client:
            while True:
                try:
                    await self._read_batch(client)
                except valkey.Down:
                    await asyncio.sleep(RETRY_AFTER_S)

    async def _read_batch(self, client: valkey.AsyncClient) -> None:
        found: Any = await client.xread({bus.stream(): self._position}, count=READ_BATCH, block=int(READ_WAIT_S * 1000))
        self._read_at = time.monotonic()
        for _, entries in found:
            for entry_id, fields in entries:
                self._position = entry_id
                self._take(fields)

    def _take(self, fields: Mapping[bytes, bytes]) -> None:
        if self._seen_before(fields):
            return
        events: list[Event] = orjson.loads(fields[b"e"])
        channels = [self.channel(int(fields[b"d"]))] if fields[b"d"] else list(self._channels.values())
        for channel in channels:
            for event in events:
                channel.add(event)

    def _seen_before(self, fields: Mapping[bytes, bytes]) -> bool:
        source = fields.get(b"s")
        if source is None:
            return False
        number = int(fields[b"n"])
        seen = number <= self._batches_seen.get(source, 0)
        self._batches_seen[source] = max(number, self._batches_seen.get(source, 0))
        return seen

    def channel(self, deployment_id: int) -> Channel:
        return self._channels.setdefault(deployment_id, Channel(self.stream))

    @property
    def channels(self) -> Mapping[int, Channel]:
        return self._channels

    # What goes out

    async def send(self) -> None:
        """Ten times a second one frame to each deployment that has news."""
        tidied_at = time.monotonic()
        while True:
            now = time.monotonic()
            for channel in self._channels.values():
                channel.flush(now)
                if self.is_fresh and now - channel.last_frame_at >= HEARTBEAT_EVERY_S:
                    channel.heartbeat(now)
            if now - tidied_at >= TIDY_EVERY_S:
                self._tidy()
                tidied_at = now
            await asyncio.sleep(FRAME_EVERY_S)

    @property
    def is_fresh(self) -> bool:
        """False while Valkey is away: then the sockets fall silent, and the pages say so."""
        return time.monotonic() - self._read_at < STREAM_FRESH_S

    def _tidy(self) -> None:
        oldest = time.time() - bus.KEPT_S
        for channel in self._channels.values():
            channel.history.forget_before(oldest)

    @property
    def viewers(self) -> list[Viewer]:
        return [viewer for channel in self._channels.values() for viewer in channel.viewers]

    def leave(self, deployment_id: int, viewer: Viewer) -> None:
        if channel := self._channels.get(deployment_id):
            channel.viewers.discard(viewer)

    async def join(self, deployment_id: int, viewer: Viewer) -> str | None:
        """The snapshot as text; frames that `viewer` takes from now on continue it. None: no such deployment.

        The charts are taken at the moment of joining. The yard is read after it, so it is at least as new, and what
        changes from then on comes as an event.
        """
        channel = self.channel(deployment_id)
        channel.viewers.add(viewer)
        charts, seq = channel.encoded_charts(time.time()), channel.seq
        found = await self._yard(deployment_id)
        if found is None:
            self.leave(deployment_id, viewer)
            self._channels.pop(deployment_id, None)
            return None
        head = {"type": "snapshot", "stream": self.stream, "seq": seq, "now": time.time(), **found}
        return f"{orjson.dumps(head)[:-1].decode()},{charts[1:].decode()}"

    async def _yard(self, deployment_id: int) -> Yard | None:
        """Shared by all who asked before it is read: a hundred sockets that come back at once cost one reading."""
        waiting = self._yards.get(deployment_id)
        if waiting is None:
            waiting = asyncio.create_task(self._read_yard(deployment_id))
            self._yards[deployment_id] = waiting
        return await asyncio.shield(waiting)

    async def _read_yard(self, deployment_id: int) -> Yard | None:
        async with self._yard_lock:
            self._yards.pop(deployment_id, None)
            return await self._database.run(_yard_now, deployment_id)


def _yard_now(deployment_id: int) -> Yard | None:
    return yard(deployment_id, loads.read())


def snapshot(deployment: Deployment) -> Snapshot:
    """For synchronous code, such as the first drawing of the page: the yard and the latest requests, without the
    charts that only the sockets carry."""
    found = _yard_now(deployment.pk)
    if found is None:
        raise Deployment.DoesNotExist(f"{deployment.name} was deleted meanwhile")
    requests = queries.latest_rows(deployment.pk, REQUESTS_SHOWN)
    charts: Charts = {"ttft": [], "gaps": [], "long_prompts": [], "requests": requests}
    return {"type": "snapshot", "stream": "", "seq": 0, "now": time.time(), **found, **charts}
