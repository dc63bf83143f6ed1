"""Celery tasks of the console's worker: short ones on queue `console`, those that wait for a server on `checks`.

Each takes ids, may run twice, and may be lost: the tick finds again whatever is due.
"""

import threading

from console.celery import app
from console.fleet import moves
from console.launch import reports, verification
from console.launch import tick as ticking
from console.launch.contracts import HostReport

_ticking = threading.Lock()
CHECKS_AT_ONCE = 4
_checks = threading.BoundedSemaphore(CHECKS_AT_ONCE)
"""Checks wait for servers that may not answer. A worker that also takes in reports keeps threads for those: what finds
no room is dropped, and posted again by the next tick."""


@app.task(name="console.report")
def report(news: HostReport) -> None:
    if reports.take(news):
        moves.advance_all()


@app.task(name="console.tick")
def tick() -> None:
    """One at a time in a worker; a slow one makes the next wait for its own second."""
    if not _ticking.acquire(blocking=False):
        return
    try:
        ticking.tick()
    finally:
        _ticking.release()


@app.task(name="console.verify")
def verify(server_id: int, generation: int) -> None:
    if _checks.acquire(blocking=False):
        try:
            verification.verify(server_id, generation)
        finally:
            _checks.release()


@app.task(name="console.verify_pair")
def verify_pair(prefill_id: int, decode_id: int) -> None:
    if _checks.acquire(blocking=False):
        try:
            verification.verify_pair(prefill_id, decode_id)
        finally:
            _checks.release()
