"""Frees a hand-off whose request will not use it: a decode server fetches it for one token and forgets it."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from routing.attempt import Job
from routing.choose import Layout
from routing.errors import LegError
from routing.handoff import Handoff
from routing.leg import Leg

MAY_TAKE_S: Final = 1.0
"""When the router ends."""


async def release(handoff: Handoff, job: Job, layout: Layout) -> bool:
    """False when no decode server took it."""
    now = time.monotonic()
    partners = [backend for backend in layout.partners.get(handoff.prefill.id, ()) if backend.is_usable(now)]
    if not partners:
        return False
    decode = min(partners, key=lambda backend: backend.load.all_inflight)
    path, lease_s = job.ask.request.path, handoff.prefill.server.kv_lease_s
    body = job.decode_body.to_release(path, handoff.params)
    headers = [(b"content-type", b"application/json"), (b"x-request-id", f"{job.record.request_id}-r".encode())]
    timeouts = replace(job.ask.deployment.policy.timeouts, first_byte_s=lease_s, idle_s=lease_s)
    try:
        with Leg(decode, timeouts) as leg:
            await leg.open("POST", path, headers, body, handoff.check_lease)
            await leg.read()
    except LegError:
        return False
    handoff.fetched()
    return True


async def end_soon(releases: "Collection[asyncio.Task[None]]") -> None:
    """Waits a moment for them; what no decode server has fetched by then is dropped when its lease is over."""
    if not releases:
        return
    _, late = await asyncio.wait(releases, timeout=MAY_TAKE_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
