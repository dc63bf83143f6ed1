"""Takes in what a host reports: the host itself, its GPUs, and each of its servers."""

import logging
from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from console.accounts.audit import SYSTEM, record
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
    now = timezone.now()
    host, joined = Host.objects.get_or_create(name=report["host"])
    was_reachable, old_address = host.is_reachable, host.address
    fields = {
        "last_seen_at": now,
        "agent_started_at": report["agent_started_at"],
        "last_report_seq": report["seq"],
        "address": report["address"],
        "inventory": report["inventory"],
    }
    if not Host.objects.filter(_newer_than_known(report, now), pk=host.pk).update(**fields):
        return None
    for name, value in fields.items():
        setattr(host, name, value)
    if joined:
        record(SYSTEM, "host.join", f"host {host.name}", after={"address": host.address})
    if joined or not was_reachable or old_address != host.address:
        host_changed.send(sender=Host, host=host)
    return host


def _newer_than_known(report: HostReport, now: datetime) -> Q:
    """By the agent's start and its count of reports. An agent whose clock went back is believed after a silence.

    One whose login was revoked is not believed at all: it may still know another way to the broker.
    """
    started_at = report["agent_started_at"]
    silence = timedelta(seconds=settings.HOST_UNREACHABLE_AFTER_S)
    newer = (
        Q(agent_started_at=None)
        | Q(agent_started_at__lt=started_at)
        | Q(agent_started_at=started_at, last_report_seq__lt=report["seq"])
        | Q(last_seen_at__lt=now - silence)
    )
    return newer & Q(login__revoked_at=None)


def _note_gpus(host: Host, reports: list[GpuReport]) -> None:
    rows = [Gpu(host=host, **gpu) for gpu in reports]
    if rows:
        Gpu.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["host", "index"], update_fields=list(GPU_FIELDS)
        )
    host.gpus.exclude(index__in=[gpu["index"] for gpu in reports]).delete()


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
