"""From "it listens" to "it takes traffic": tries a server, and it with its peers, and records what that showed."""

import logging
from datetime import timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from console.fleet import moves
from console.fleet.models import Server
from console.fleet.signals import server_changed
from console.fleet.states import ServerState
from console.launch import canary, pairs, readiness

logger = logging.getLogger(__name__)


def verify(server_id: int, generation: int) -> None:
    """May be called twice, at once. A server that fails is tried again by the tick, with longer waits.

    READY does not wait for peers that are not there, nor for a pair that fails: that one gets no traffic.
    """
    due = Server.objects.with_names().due().filter(state=ServerState.VERIFYING)
    server = due.filter(pk=server_id, generation=generation).first()
    if server is None:
        return
    try:
        found = canary.try_server(pairs.target_of(server))
    except canary.Failed as error:
        _note_problem(server, str(error))
        return
    server.max_model_len = found.max_model_len
    pairs.try_with_peers(server)
    _take_into_traffic(server, found)


def verify_pair(prefill_id: int, decode_id: int) -> None:
    servers = Server.objects.with_names().filter(state=ServerState.READY).in_bulk([prefill_id, decode_id])
    if len(servers) == 2:
        pairs.try_pair(servers[prefill_id], servers[decode_id])


def due_servers() -> list[Server]:
    return list(Server.objects.due().filter(state=ServerState.VERIFYING))


def _note_problem(server: Server, problem: str) -> None:
    wait = timedelta(seconds=readiness.retry_in_s(server.check_attempts))
    with transaction.atomic():
        rows = Server.objects.filter(pk=server.pk, generation=server.generation, state=ServerState.VERIFYING)
        if not rows.update(
            check_attempts=F("check_attempts") + 1,
            check_due_at=timezone.now() + wait,
            check_problem=problem[:400],
        ):
            return
        server.refresh_from_db()
        server_changed.send(sender=Server, server=server, old_state=ServerState.VERIFYING)
    logger.info("%s is not ready yet: %s", server.name, problem)


def _take_into_traffic(server: Server, found: canary.ServerResult) -> None:
    now = timezone.now()
    with transaction.atomic():
        won = server.transition(
            ServerState.READY,
            ready_at=now,
            max_model_len=found.max_model_len,
            forces_usage=found.forces_usage,
            check_problem="",
            check_due_at=None,
        )
    if won:
        moves.advance_all(server.deployment_id)
