"""What time alone brings about: hosts that fell silent, messages to send again, drains that ended, checks that are due.

Runs every second. Each part may run twice, or at once in two workers, without harm: everything that changes is a
conditional update.
"""

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from console.database import Away
from console.fleet import admission, adoption, draining, hosts, move_windows, moves, starting
from console.fleet.models import Host, Server
from console.fleet.signals import host_changed
from console.fleet.states import ServerState
from console.gateway import loads
from console.launch import adopted, pairs, queueing, remote, verification
from console.launch.contracts import Cause
from console.launch.hearing import Hearing

logger = logging.getLogger(__name__)
S = ServerState

SEND_AGAIN_AFTER_S = 5.0
PENDING_LIMIT_S = 60.0
"""A host that reports, and has not begun a start after so long, will not."""
MAY_FALL_SILENT = (S.STARTING, S.LOADING, S.VERIFYING, S.READY, S.DRAINING)

hearing = Hearing(limit_s=settings.HOST_UNREACHABLE_AFTER_S)


def tick() -> None:
    """Parts do not hold each other up: one that fails is logged, and tried again in a second.

    Raises `database.Away` at once: without the database no part can do anything.
    """
    hearing.note(time.monotonic(), not hosts.suspect_ourselves())
    parts: tuple[Callable[[], None], ...] = (
        mark_silent_hosts,
        admission.keep_logins,
        press_for_launches,
        end_drained_servers,
        press_for_stops,
        verify_servers,
        verify_pairs,
        adopted.post_if_any,
        moves.advance_all,
        move_windows.fill_windows,
    )
    for part in parts:
        try:
            part()
        except Away:
            raise
        except Exception:
            logger.exception("%s failed and is tried again at the next tick", part.__name__)


def mark_silent_hosts() -> None:
    """Their servers may well go on serving: routing stays as it is, and nothing is stopped."""
    if not hearing.is_sure(time.monotonic()):
        return
    limit = timezone.now() - timedelta(seconds=settings.HOST_UNREACHABLE_AFTER_S)
    servers = Server.objects.with_names().filter(host__last_seen_at__lt=limit, state__in=MAY_FALL_SILENT)
    changed: dict[int, Host] = {}
    for server in servers:
        with transaction.atomic():
            if server.transition(S.UNREACHABLE, state_before_unreachable=server.state):
                changed[server.own_host.pk] = server.own_host
    for host in changed.values():
        logger.warning("host %s has been silent for %.0f s", host.name, host.heartbeat_age_s or 0)
        with transaction.atomic():
            host_changed.send(sender=Host, host=host)


def press_for_launches() -> None:
    """A launch that its host has not reported may be lost: it is sent again, which starts nothing twice."""
    for server in Server.objects.with_names().filter(state=S.PENDING, observed={}):
        waited_s = (timezone.now() - server.state_since).total_seconds()
        if waited_s > PENDING_LIMIT_S and hearing.is_sure(time.monotonic()):
            _give_up_launch(server)
        elif waited_s > SEND_AGAIN_AFTER_S and _take_turn(server):
            remote.launch_now(starting.again(server), server.own_host.queue)


def press_for_stops() -> None:
    for server in Server.objects.with_names().filter(state=S.STOPPING):
        waited_s = (timezone.now() - server.state_since).total_seconds()
        heard = server.observed.get("stop_requested")
        if waited_s > SEND_AGAIN_AFTER_S and not heard and _take_turn(server):
            remote.stop_now(server.own_host.queue, server.pk, server.generation)


def end_drained_servers() -> None:
    for server in Server.objects.with_names().filter(state=S.DRAINING):
        if loads.drained(server):
            with transaction.atomic():
                if server.is_adopted:
                    adoption.remove_drained(server)
                else:
                    draining.end(server, server.stop_reason)


def verify_servers() -> None:
    for server in verification.due_servers():
        queueing.verify_server(server.pk, server.generation)


def verify_pairs() -> None:
    for pair in pairs.due():
        queueing.verify_pair(pair.prefill_id, pair.decode_id)


def _give_up_launch(server: Server) -> None:
    cause = Cause(
        code="not_started",
        message=f"Host {server.own_host.name} did not start it within {PENDING_LIMIT_S:.0f} s.",
        instruction="Look whether the agent runs there and at its log, then press Start.",
    )
    with transaction.atomic():
        if server.transition(S.FAILED, failure=dict(cause)):
            # Should the launch reach the host after all, its process is ended.
            remote.send_stop(server)


def _take_turn(server: Server) -> bool:
    """True for one worker each `SEND_AGAIN_AFTER_S`."""
    rows = Server.objects.due().filter(pk=server.pk, generation=server.generation, state=server.state)
    return bool(rows.update(check_due_at=timezone.now() + timedelta(seconds=SEND_AGAIN_AFTER_S)))
