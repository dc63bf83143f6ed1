"""Engine samples that the agents reported, from the rows to the router and the live view."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from django.db import Error

from console.database import DatabaseThread
from console.fleet.models import Server
from console.fleet.states import AT_REST
from console.gateway.seam import Router
from console.launch.contracts import EngineSample

LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Observed:
    """The newest sample of one start of one server."""

    server_id: int
    deployment_id: int
    generation: int
    sample: EngineSample | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What an engine last said. `tokens_per_s` is between its last two samples; None before the second."""

    observed: Observed
    tokens_per_s: float | None = None

    @property
    def shown(self) -> dict[str, float | None]:
        sample = self.observed.sample
        if sample is None:
            return {}
        counts: dict[str, float | None] = {"running": sample["running"], "waiting": sample["waiting"]}
        more = {"kv_usage": sample["kv_usage"], "tokens_per_s": self.tokens_per_s, "engine_at": sample["at"]}
        return {**counts, **more}


class Samples:
    """Holds the figures of every running server; one query a second serves all viewers, or the router."""

    def __init__(self, database: DatabaseThread, router: Router | None = None) -> None:
        self._database, self._router = database, router
        self._latest: dict[int, Figures] = {}

    async def follow(self) -> None:
        while True:
            with suppress(Error):  # gateway.sync says that the database is away
                self.take(await self._database.run(read))
            await asyncio.sleep(LOOK_EVERY_S)

    def deployments(self) -> Mapping[int, int]:
        """Deployment id by server id."""
        return {server_id: figures.observed.deployment_id for server_id, figures in self._latest.items()}

    def engines(self) -> Mapping[int, Mapping[str, float | None]]:
        return {server_id: figures.shown for server_id, figures in self._latest.items()}

    def take(self, rows: Iterable[Observed]) -> None:
        """Tells the router what is new: an old sample says nothing about now."""
        before, self._latest = self._latest, {}
        for now in rows:
            known = before.get(now.server_id)
            if known is not None and known.observed == now:
                self._latest[now.server_id] = known
                continue
            self._latest[now.server_id] = Figures(now, tokens_per_s(known.observed if known else None, now))
            self._tell_router(now)

    def _tell_router(self, observed: Observed) -> None:
        if self._router is not None and (sample := observed.sample) is not None:
            self._router.observe(
                str(observed.server_id),
                kv_usage=sample["kv_usage"],
                waiting=sample["waiting"],
                running=sample["running"],
            )


def tokens_per_s(before: Observed | None, now: Observed) -> float | None:
    """None when it cannot be known: the first sample of a start, or counters that began anew."""
    if before is None or before.generation != now.generation or before.sample is None or now.sample is None:
        return None
    elapsed_s = now.sample["at"] - before.sample["at"]
    tokens = now.sample["generation_tokens"] - before.sample["generation_tokens"]
    return tokens / elapsed_s if elapsed_s > 0 and tokens >= 0 else None


def read() -> list[Observed]:
    """One query."""
    rows = Server.objects.exclude(state__in=AT_REST).values_list("pk", "deployment_id", "generation", "observed")
    return [Observed(pk, deployment, generation, seen.get("sample")) for pk, deployment, generation, seen in rows]
