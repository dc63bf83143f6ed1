"""Takes in what a host reports: the host itself, its GPUs, and each of its servers."""

import logging
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from console.accounts.audit import SYSTEM, record
from console.fleet import admission, moves
from console.fleet.models import Gpu, Host, Server, name_validator
from console.fleet.signals import host_changed
from console.fleet.states import ServerState
from console.launch import observing, queueing, reconcile, remote
from console.launch.contracts import GpuReport, HostReport, ServerObservation

logger = logging.getLogger(__name__)

GPU_FIELDS = (
    "uuid",
    "model_name",
    "simulated",
    "memory_total_mib",
    "memory_used_mib",
    "utilization_percent",
    "temperature_c",
    "power_w",
    "holders",
)


READINGS = frozenset({"memory_used_mib", "utilization_percent", "temperature_c", "power_w"})
READINGS_EVERY_S = 4.0
"""Of a GPU whose readings alone changed: eight rows of 200 hosts each 2 s would be the most of what a report costs."""


@dataclass(frozen=True)
class _Written:
    at: float
    lasting: list[dict[str, object]]


_written: dict[tuple[int, datetime], _Written] = {}
"""What this process wrote last of a host's GPUs, by the host. Another worker may have written since: both write again
after `READINGS_EVERY_S`."""


def take(report: HostReport) -> bool:
    """False when it was dropped: an older one than we know, of a revoked host, or from no host that could be.

    One transaction, which begins by locking the host's row: reports of one host are taken in one after another.
    """
    try:
        name_validator(report["host"])
    except ValidationError:
        logger.warning("a report of %r was dropped: that is no name of a host", report["host"])
        return False
    with transaction.atomic():
        host = _note_host(report)
        if host is None:
            return False
        _note_gpus(host, report["gpus"])
        _note_servers(host, report)
    return True


def _note_host(report: HostReport) -> Host | None:
    """The host, its row locked; None when a newer report is known.

    A host whose login was revoked is not believed at all: it may still know another way to the broker.
    """
    now = timezone.now()
    host, joined = _locked(report["host"])
    if admission.login_of(host) == "revoked" or not _is_news(host, report, now):
        return None
    was_reachable, old_address = host.is_reachable, host.address
    fields = {
        "last_seen_at": now,
        "agent_started_at": report["agent_started_at"],
        "last_report_seq": report["seq"],
        "address": report["address"],
    }
    if host.inventory != report["inventory"]:  # large, and seldom another one
        fields["inventory"] = report["inventory"]
    Host.objects.filter(pk=host.pk).update(**fields)
    for name, value in fields.items():
        setattr(host, name, value)
    if joined:
        record(SYSTEM, "host.join", f"host {host.name}", after={"address": host.address})
    if joined or not was_reachable or old_address != host.address:
        host_changed.send(sender=Host, host=host)
    return host


def _locked(name: str) -> tuple[Host, bool]:
    """And whether it has just joined."""
    host = Host.objects.select_related("login").select_for_update(of=("self",), no_key=True).filter(name=name).first()
    return (host, False) if host is not None else Host.objects.get_or_create(name=name)


def _is_news(host: Host, report: HostReport, now: datetime) -> bool:
    """By the agent's start and its count of reports. An agent whose clock went back is believed after a silence."""
    started_at = host.agent_started_at
    if started_at is None or started_at < report["agent_started_at"]:
        return True
    if started_at == report["agent_started_at"] and host.last_report_seq < report["seq"]:
        return True
    silence = timedelta(seconds=settings.HOST_UNREACHABLE_AFTER_S)
    return host.last_seen_at is not None and host.last_seen_at < now - silence


def _note_gpus(host: Host, reports: list[GpuReport]) -> None:
    """What changes all the time is written some times a minute; all else at once."""
    key, now = (host.pk, host.registered_at), time.monotonic()
    known = _written.get(key)
    is_same = known is not None and known.lasting == _lasting(reports)
    if is_same and known is not None and now - known.at < READINGS_EVERY_S:
        return
    rows = [Gpu(host=host, **gpu) for gpu in reports]
    if rows:
        Gpu.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["host", "index"], update_fields=list(GPU_FIELDS)
        )
    if not is_same:
        host.gpus.exclude(index__in=[gpu["index"] for gpu in reports]).delete()
    transaction.on_commit(partial(_written.__setitem__, key, _Written(now, _lasting(reports))))


def _lasting(reports: list[GpuReport]) -> list[dict[str, object]]:
    return [{name: value for name, value in gpu.items() if name not in READINGS} for gpu in reports]


def _note_servers(host: Host, report: HostReport) -> None:
    by_server: dict[int, list[ServerObservation]] = defaultdict(list)
    for seen in report["servers"]:
        by_server[seen["server_id"]].append(seen)
    for server in Server.objects.filter(host=host):
        server.host = host
        _note_server(server, by_server.pop(server.pk, []), report["sent_at"])
    for strangers in by_server.values():
        for seen in strangers:
            _end_stranger(host, seen)


def _note_server(server: Server, observations: list[ServerObservation], sent_at: float) -> None:
    current = None
    for seen in observations:
        if seen["generation"] == server.generation:
            current = seen
        else:
            _end_stranger(server.own_host, seen)
    decision = reconcile.decide(_facts(server), current)
    if decision.stop:
        remote.send_stop(server)
    fields = {**observing.kept(server, current, sent_at), **decision.fields}
    if decision.state is not None:
        if server.transition(decision.state, **fields):
            _after_transition(server)
        return
    observing.keep(server, fields)


def _end_stranger(host: Host, seen: ServerObservation) -> None:
    """A process of an earlier start, or of a server that was deleted: never two for one server."""
    if seen["alive"] or seen["group_pids"]:
        logger.warning("ending pid %s on %s: nobody asks for it any more", seen["pid"], host.name)
        stop = partial(remote.stop_now, host.queue, seen["server_id"], seen["generation"])
        transaction.on_commit(stop)


def _after_transition(server: Server) -> None:
    transaction.on_commit(partial(moves.advance_all, server.deployment_id))
    if server.state == ServerState.VERIFYING:
        transaction.on_commit(partial(queueing.verify_server, server.pk, server.generation))


def _facts(server: Server) -> reconcile.ServerFacts:
    return reconcile.ServerFacts(
        name=server.name,
        host=server.own_host.name,
        state=ServerState(server.state),
        before_unreachable=server.state_before_unreachable,
        in_state_s=(timezone.now() - server.state_since).total_seconds(),
    )
