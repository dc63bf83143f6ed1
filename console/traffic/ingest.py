"""From the stream to the database: at least once, each request once."""

import logging
import os
import socket
from typing import Any, TypeAlias

import redis
from django.conf import settings
from django.db import DataError, IntegrityError

from console import valkey
from console.fleet.models import Deployment
from console.traffic import wire
from console.traffic.models import RequestRecord

log = logging.getLogger(__name__)

GROUP = "ingest"
BATCH = 500
MAX_BATCHES = 40
"""Per call, so that a backlog does not keep a worker's thread for minutes."""
RECLAIM_AFTER_MS = 30_000
"""A batch that a crashed worker took is taken over after this."""

Deployments: TypeAlias = dict[str, tuple[int, str]]
"""By name: key and served model."""


def take_all() -> int:
    """Stores what waits, what a crashed worker left first. Returns the number of entries taken from the stream."""
    client = valkey.client()
    _ensure_group(client)
    # Before anything is taken: what is taken while the database is away waits for RECLAIM_AFTER_MS.
    deployments = _deployments()
    taken = _store(client, _left_behind(client), deployments)
    for _ in range(MAX_BATCHES):
        entries = _fresh(client)
        taken += _store(client, entries, deployments)
        if len(entries) < BATCH:
            break
    return taken


def _ensure_group(client: "redis.Redis") -> None:
    try:
        client.xgroup_create(wire.stream(), GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def _left_behind(client: "redis.Redis") -> list[Any]:
    answer: Any = client.xautoclaim(
        wire.stream(), GROUP, _consumer(), min_idle_time=RECLAIM_AFTER_MS, start_id="0-0", count=BATCH
    )
    return [entry for entry in answer[1] if entry[1]]


def _fresh(client: "redis.Redis") -> list[Any]:
    answer: Any = client.xreadgroup(GROUP, _consumer(), {wire.stream(): ">"}, count=BATCH)
    return list(answer[0][1]) if answer else []


def _consumer() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _store(client: "redis.Redis", entries: list[Any], deployments: Deployments) -> int:
    """Stored first, acknowledged after: a crash in between stores nothing twice, because request ids are unique."""
    if not entries:
        return 0
    _save(_rows(entries, deployments))
    ids = [entry_id for entry_id, _ in entries]
    with client.pipeline(transaction=True) as pipe:
        pipe.xack(wire.stream(), GROUP, *ids)
        pipe.xdel(wire.stream(), *ids)
        pipe.execute()
    return len(entries)


def _rows(entries: list[Any], deployments: Deployments) -> list[RequestRecord]:
    """An entry that nobody can read is logged and left out, or it would hold up all that follow."""
    rows = []
    for entry_id, fields in entries:
        try:
            rows.append(wire.row(wire.decode(fields[b"r"]), deployments))
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            log.error("request record %s cannot be read and is left out: %r", entry_id.decode(), error)
    return rows


def _deployments() -> Deployments:
    rows = Deployment.objects.values_list("name", "pk", "served_model_name")
    return {name: (pk, model) for name, pk, model in rows}


def _save(rows: list[RequestRecord]) -> None:
    try:
        RequestRecord.objects.bulk_create(rows, batch_size=BATCH, ignore_conflicts=True)
    except (DataError, IntegrityError, ValueError, TypeError, OverflowError):
        for row in rows:
            _save_alone(row)


def _save_alone(row: RequestRecord) -> None:
    """One of a batch that the database refused: only the row at fault is lost, and that is said."""
    try:
        RequestRecord.objects.bulk_create([row], ignore_conflicts=True)
    except (DataError, IntegrityError, ValueError, TypeError, OverflowError) as error:
        log.error("the record of request %s cannot be stored and is left out: %s", row.request_id, error)


def kept_days() -> int:
    return int(settings.RECORDS_KEPT_DAYS)
