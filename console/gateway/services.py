"""What runs beside the requests of one web process, from its start to its end."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

from django.conf import settings

from console import metrics
from console.background import Background
from console.database import DatabaseThread
from console.gateway.announce import Announcer
from console.gateway.reports import Reports
from console.gateway.samples import Samples
from console.gateway.sync import Sync
from console.live import doorkeeper
from console.live.collect import Collector
from console.live.load import LoadWatch
from console.live.publish import tell_server
from routing.app import Router

LAST_WORDS_LIMIT_S = 1.0
"""At the end: records not yet handed over, and the router's goodbye. A Valkey that hangs holds up nobody."""


class Services:
    """The router and the loops that feed it, watch it and tell the browsers."""

    def __init__(self) -> None:
        router_id = secrets.token_hex(8)
        # One for each subject: where one has to wait, the others go on.
        self.routing_database, self.live_database = DatabaseThread("routing"), DatabaseThread("live")
        self.token_database = DatabaseThread("tokens")
        self.reports = Reports(router_id, lambda: self.sync.names)
        self.router = Router(observer=self.reports, max_body_bytes=settings.ROUTER_MAX_BODY_BYTES)
        self.sync = Sync(self.router, self.routing_database)
        self.samples = Samples(self.router, self.routing_database)
        self.announcer = Announcer(self.router, router_id, lambda: self.sync.epoch)
        self.collector = Collector(self.live_database)
        self.load_watch = LoadWatch(
            self.collector,
            self.samples.deployments,
            self.samples.engines,
            lambda server_id: self.live_database.run(tell_server, server_id),
        )
        self.background = Background()
        self.router.metrics.registry.register(
            metrics.WebMetrics(self.reports, self.sync, self.collector, self.background)
        )

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
            "reading live events": self.collector.read,
            "sending frames": self.collector.send,
            "watching loads": self.load_watch.follow,
            "checking logins of sockets": lambda: doorkeeper.follow(self.collector, self.live_database),
        }

    async def stop(self) -> None:
        await self.router.aclose()
        await self.background.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_LIMIT_S):
                await self.reports.close()
                await self.announcer.leave()
        for database in (self.routing_database, self.live_database, self.token_database):
            database.close()
