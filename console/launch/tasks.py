"""What the console's worker does: it takes in hosts' reports, and runs tasks: short ones on queue `console`, those that
wait for a server on `checks`.

Each task takes ids, may run twice, and may be lost: the tick finds again whatever is due.
"""

import threading

from celery.signals import worker_ready

from console import alive
from console.celery import app
from console.database import tried_again
from console.launch import adopted, reports, verification
from console.launch import tick as ticking
from console.launch.at_once import AtOnce
from console.launch.inbox import Inbox

_ticking, _looking = threading.Lock(), threading.Lock()
_checks = AtOnce(4)
"""Checks wait for servers that may not answer. A worker that also takes in reports keeps threads for those."""


inbox = Inbox(reports.take)


@worker_ready.connect
def hear_hosts(**kwargs: object) -> None:
    inbox.start()


@app.task(name="console.tick")
def tick() -> None:
    """One at a time in a worker; a slow one makes the next wait for its own second."""
    if not _ticking.acquire(blocking=False):
        return
    try:
        with tried_again("looking at what is due"):
            ticking.tick()
            alive.show()
    finally:
        _ticking.release()


@app.task(name="console.verify")
def verify(server_id: int, generation: int) -> None:
    with _checks.taking(("server", server_id)) as taken:
        if taken:
            with tried_again("verifying servers"):
                verification.verify(server_id, generation)


@app.task(name="console.verify_pair")
def verify_pair(prefill_id: int, decode_id: int) -> None:
    with _checks.taking(("pair", prefill_id, decode_id)) as taken:
        if taken:
            with tried_again("verifying pairs"):
                verification.verify_pair(prefill_id, decode_id)


@app.task(name="console.look_at_adopted")
def look_at_adopted() -> None:
    """Posted each second; a round that waits for a silent server makes the next ones wait."""
    if not _looking.acquire(blocking=False):
        return
    try:
        with tried_again("looking at adopted servers"):
            adopted.look_at_all()
    finally:
        _looking.release()
