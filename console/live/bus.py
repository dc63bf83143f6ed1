"""The stream that carries live events from every process to every web process."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import orjson

from console import valkey
from console.live.events import Event

log = logging.getLogger(__name__)

KEPT_S = 300.0
"""A new web process rebuilds this much history; Valkey forgets what is older."""


def stream() -> str:
    return valkey.key("live")


def publish(deployment_id: int | None, events: Sequence[Event]) -> None:
    """For synchronous code, after commit. None: for the viewers of every deployment.

    Never raises: when Valkey is away the browsers miss these events and learn the state from their next snapshot.
    """
    try:
        valkey.client().xadd(stream(), entry(deployment_id, events), minid=oldest_id(), approximate=True)
    except valkey.Down as error:
        log.warning("%d live events were not published: %s", len(events), error)


def entry(deployment_id: int | None, events: Sequence[Event]) -> dict[Any, Any]:
    return {"d": "" if deployment_id is None else deployment_id, "e": orjson.dumps(events)}


def oldest_id() -> str:
    """Stream ids begin with milliseconds of Unix time."""
    return f"{int((time.time() - KEPT_S) * 1000)}-0"
