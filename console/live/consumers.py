"""The socket of one deployment: `/ws/deployments/<name>/`.

It sends one `events.Snapshot` and then `events.Frame`s, at least one every two seconds while all is well. A client may
send `{"type": "snapshot"}` to get a fresh snapshot on the same socket. Nothing can be changed over it.
"""

import asyncio
import logging
from contextlib import suppress

import orjson
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error

from console.accounts.models import Role
from console.database import DatabaseThread
from console.fleet.models import Deployment
from console.live.collect import Collector
from console.live.fanout import Viewer

log = logging.getLogger(__name__)

LOGIN_ENDED = 4401
NO_SUCH_DEPLOYMENT = 4404
TRY_AGAIN_LATER = 1013
FRESH_SNAPSHOT = 0
"""Not sent: the viewer is dismissed and joins again on the same socket."""
SNAPSHOT_EVERY_S = 1.0
"""A client that asks more often waits."""


class DeploymentConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Refuses the handshake (403) without a login; the origin was checked before (`console.live.origin`)."""

    _pump: "asyncio.Task[None] | None" = None
    _viewer: Viewer | None = None

    async def connect(self) -> None:
        user = self.scope["user"]
        if not user.is_authenticated or not user.can(Role.VIEWER):
            await self.close()
            return
        await self.accept()
        self._pump = asyncio.create_task(self._send_all())

    async def disconnect(self, code: int) -> None:
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Whatever else a client says is ignored."""
        with suppress(orjson.JSONDecodeError):
            message = orjson.loads(text_data or bytes_data or b"null")
            if message == {"type": "snapshot"} and self._viewer is not None:
                self._viewer.dismiss(FRESH_SNAPSHOT)

    async def _send_all(self) -> None:
        with suppress(OSError):  # the client has left
            try:
                await self.close(await self._watch())
            except Error as error:
                log.warning("a socket could not be served, its page will try again: %s", error)
                await self.close(TRY_AGAIN_LATER)

    async def _watch(self) -> int:
        """Returns the code to close with."""
        collector: Collector = self.scope["collector"]
        deployment_id = await self._find_deployment()
        if deployment_id is None:
            return NO_SUCH_DEPLOYMENT
        while True:
            self._viewer = Viewer(self.scope["user"].pk, self.scope["session"].session_key or "")
            try:
                code = await self._watch_from_snapshot(collector, deployment_id, self._viewer)
            finally:
                collector.leave(deployment_id, self._viewer)
            if code != FRESH_SNAPSHOT:
                return code
            await asyncio.sleep(SNAPSHOT_EVERY_S)

    async def _watch_from_snapshot(self, collector: Collector, deployment_id: int, viewer: Viewer) -> int:
        snapshot = await collector.join(deployment_id, viewer)
        if snapshot is None:
            return NO_SUCH_DEPLOYMENT
        await self.send(snapshot)
        while (frame := await viewer.take()) is not None:
            await self.send(frame)
        return viewer.close_code or FRESH_SNAPSHOT

    async def _find_deployment(self) -> int | None:
        database: DatabaseThread = self.scope["database"]
        return await database.run(_deployment_id, self.scope["url_route"]["kwargs"]["name"])


def _deployment_id(name: str) -> int | None:
    return Deployment.objects.filter(name=name).values_list("pk", flat=True).first()
