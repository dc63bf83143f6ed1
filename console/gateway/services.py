"""What runs beside the router of one web process, from its start to its end."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from django.conf import settings

from console import metrics
from console.background import Background
from console.database import DatabaseThread
from console.gateway.announce import Announcer
from console.gateway.pages_process import PagesProcess
from console.gateway.reports import Reports
from console.gateway.samples import Samples
from console.gateway.sync import Sync
from routing.app import Router

LAST_WORDS_LIMIT_S = 1.0
"""At the end: records not yet handed over, and the router's goodbye. A Valkey that hangs holds up nobody."""


class Services:
    """The router and the loops that feed it, watch it and tell what it did."""

    def __init__(self) -> None:
        router_id = secrets.token_hex(8)
        # One for each subject: where one has to wait, the others go on.
        self.routing_database, self.token_database = DatabaseThread("routing"), DatabaseThread("tokens")
        self.reports = Reports(router_id, lambda: self.sync.names)
        self.router = Router(
            observer=self.reports,
            max_body_bytes=settings.ROUTER_MAX_BODY_BYTES,
            catch_up=lambda: self.sync.catch_up(),
        )
        self.sync = Sync(self.router, self.routing_database)
        self.samples = Samples(self.routing_database, self.router)
        self.announcer = Announcer(self.router, router_id, lambda: self.sync.epoch)
        self.pages = PagesProcess()
        self.background = Background()
        self.router.metrics.registry.register(metrics.WebMetrics(self.reports, self.sync, self.background, self.pages))

    def start_pages(self) -> None:
        self.background.start("keeping the pages' process", self.pages.follow)

    async def start(self) -> None:
        """Returns with a routing table in place, so that the first request finds what the last one did."""
        await self.sync.begin()
        for name, loop in self._loops().items():
            self.background.start(name, loop)

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "following the routing table": self.sync.follow,
            "listening for routing changes": self.sync.listen,
            "reading engine samples": self.samples.follow,
            "announcing this router": self.announcer.follow,
            "watching running requests": lambda: self.reports.watch(self.router),
            "delivering records": self.reports.deliver,
        }

    async def stop(self) -> None:
        await self.router.aclose()
        await self.pages.stop()
        await self.background.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_LIMIT_S):
                await self.reports.close()
                await self.announcer.leave()
        for database in (self.routing_database, self.token_database):
            database.close()
