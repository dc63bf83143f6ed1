"""This router process says twice a second which table it serves and what it has in flight."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from console import valkey
from console.gateway.loads import REPORT_EVERY_S, SILENT_AFTER_S, RouterLoad, RouterReport, members_key, report_key
from console.gateway.seam import Circuit, Load, Router

FORGET_AFTER_S = 3600.0
"""Ids of routers that ended without saying so are cleared away."""
LONGEST_REASON = 200


class Announcer:
    def __init__(self, router: Router, router_id: str, epoch: Callable[[], int]) -> None:
        self._router, self._id, self._epoch = router, router_id, epoch

    async def follow(self) -> None:
        async with valkey.async_client() as client:
            while True:
                with suppress(*valkey.Down):
                    await self.announce(client)
                await asyncio.sleep(REPORT_EVERY_S)

    async def announce(self, client: "valkey.AsyncClient") -> None:
        report = self.report()
        async with client.pipeline(transaction=True) as pipe:
            pipe.set(report_key(self._id), report.encode(), px=int(SILENT_AFTER_S * 1000))
            pipe.zadd(members_key(), {self._id: report.at})
            pipe.zremrangebyscore(members_key(), 0, report.at - FORGET_AFTER_S)
            await pipe.execute()

    def report(self) -> RouterReport:
        circuits = self._router.circuits()
        loads = {
            int(server_id): _told(load, circuits.get(server_id)) for server_id, load in self._router.loads().items()
        }
        told = {server_id: load for server_id, load in loads.items() if load != RouterLoad()}
        return RouterReport(self._id, self._epoch(), time.time(), told)

    async def leave(self) -> None:
        """This process serves nothing any more, so nobody has to wait for it."""
        with suppress(*valkey.Down):
            async with valkey.async_client() as client:
                await client.delete(report_key(self._id))
                await client.zrem(members_key(), self._id)


def _told(load: Load, circuit: Circuit | None) -> RouterLoad:
    if circuit is None:
        return RouterLoad(load.inflight, load.handoffs)
    return RouterLoad(load.inflight, load.handoffs, _avoided(circuit), circuit.is_silent)


def _avoided(circuit: Circuit) -> str:
    if circuit.state == "closed":
        return ""
    return circuit.last_error[:LONGEST_REASON] or "it failed repeatedly"
