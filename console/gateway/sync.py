"""Keeps the router of this process at the newest table, and at the last one while the database is away."""

import asyncio
import logging
import time
from dataclasses import replace

from django.db import Error

from console import valkey
from console.database import DatabaseThread
from console.gateway import publish, table
from console.gateway.models import Epoch
from console.gateway.seam import Router
from console.gateway.table import Names, Published

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
LEAST_REST_S = 0.05
REBUILD_EVERY_S = 15.0
"""Also without a new epoch: keys expire by themselves."""
FIRST_LOOK_LIMIT_S = 3.0
CATCH_UP_LIMIT_S = 2.0


class Sync:
    """Begins with the table kept on disk, so that a restart without a database serves what was served before."""

    def __init__(self, router: Router, database: DatabaseThread) -> None:
        self._router, self._database = router, database
        self._nudged = asyncio.Event()
        self._next_look_over = asyncio.Event()
        self._published = Published()
        self.names = Names()
        """Also of servers that were removed while their last requests ran."""
        self._built_at = float("-inf")
        self._database_away = False
        self._look_is_stuck = False

    @property
    def epoch(self) -> int:
        """Of the table that the router serves."""
        return self._published.table.epoch

    async def begin(self) -> None:
        """Returns with a table in place: the newest, or the kept one when the database does not answer soon."""
        if kept := await asyncio.to_thread(table.recall):
            self._use(kept)
        try:
            await asyncio.wait_for(self.look(), FIRST_LOOK_LIMIT_S)
        except TimeoutError:
            log.warning("the database did not answer; serving the table kept on disk")

    async def follow(self) -> None:
        """Rests after each look as long as it took, so that a storm of changes takes half of one thread at most."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(min(max(LEAST_REST_S, time.monotonic() - began), LOOK_EVERY_S))
            try:
                await asyncio.wait_for(self._nudged.wait(), LOOK_EVERY_S)
            except TimeoutError:
                continue
            self._nudged.clear()

    async def listen(self) -> None:
        """Nudges over Valkey. While it is away, `follow` finds changes by looking."""
        while True:
            try:
                await self._listen()
            except valkey.Down:
                await asyncio.sleep(LOOK_EVERY_S)

    async def _listen(self) -> None:
        async with valkey.async_client() as client, client.pubsub() as nudges:
            await nudges.subscribe(publish.channel())
            self._nudged.set()  # what was said before we listened
            while True:
                if await nudges.get_message(ignore_subscribe_messages=True, timeout=5.0):
                    self._nudged.set()

    async def catch_up(self) -> None:
        """Returns once a look that began after this call is over: what was committed before is served then. Within
        `CATCH_UP_LIMIT_S`, and at once while the database is away or lets a look wait for so long."""
        if self._database_away or self._look_is_stuck:
            return
        over = self._next_look_over
        self._nudged.set()
        try:
            async with asyncio.timeout(CATCH_UP_LIMIT_S):
                await over.wait()
        except TimeoutError:
            self._look_is_stuck = True

    async def look(self) -> None:
        """One look at the epoch, and the new table if it has changed. Keeps the last one when the database fails."""
        over, self._next_look_over = self._next_look_over, asyncio.Event()
        try:
            await self._look()
        finally:
            over.set()
            self._look_is_stuck = False

    async def _look(self) -> None:
        known = None if time.monotonic() - self._built_at > REBUILD_EVERY_S else self.epoch
        try:
            fresh = await self._database.run(_load_if_changed, known, self._published)
        except Error as error:
            self._note_away(error)
            return
        self._note_back()
        if fresh is not None:
            self._built_at = time.monotonic()
            self._use(fresh)

    def _use(self, published: Published) -> None:
        if published.table != self._published.table:
            self._router.swap(published.table)
        self._published = published
        self.names = replace(published.names, servers={**self.names.servers, **published.names.servers})

    def _note_away(self, error: Error) -> None:
        if not self._database_away:
            log.warning("the database does not answer; routing goes on with table %d: %s", self.epoch, error)
        self._database_away = True

    def _note_back(self) -> None:
        if self._database_away:
            log.warning("the database answers again")
        self._database_away = False


def _load_if_changed(known_epoch: int | None, present: Published) -> Published | None:
    if known_epoch is not None and Epoch.current() == known_epoch:
        return None
    fresh = table.load()
    if fresh != present:
        _keep(fresh)
    return fresh


def _keep(published: Published) -> None:
    try:
        table.keep(published)
    except OSError as error:
        log.warning("the routing table could not be kept on disk: %s", error)
