"""What is kept of an observation of a server, whoever made it: its host's agent, or the console of an adopted one."""

from datetime import datetime
from typing import Any, NotRequired

from django.db.models import Count, Sum
from django.utils import timezone

from console.fleet.cards import SILENT_LOG_AFTER_S
from console.fleet.models import Server
from console.fleet.signals import server_changed
from console.fleet.states import AT_REST, ServerRole, ServerState
from console.launch import handoffs
from console.launch.contracts import EngineSample, ServerObservation
from console.traffic.models import RequestRecord


class Observed(ServerObservation):
    """As it is kept on the server's row."""

    tokens_per_s: NotRequired[float | None]
    """Answer tokens, between the last two samples."""
    log_silent_s: NotRequired[float | None]
    """Since its last log line, by its host's clock."""
    silent_since: NotRequired[float | None]
    """Of an adopted server: since when it has not answered well. Unix time."""


def kept(server: Server, seen: ServerObservation | None, sent_at: float) -> dict[str, Any]:
    """Fields of the row that follow from the observation alone. `sent_at`: by the clock of whoever observed."""
    if seen is None:
        # Ended and forgotten by its host: whatever was left of it is gone as well.
        gone = server.state in AT_REST and (server.observed.get("alive") or server.observed.get("group_pids"))
        return {"observed": {**server.observed, "alive": False, "group_pids": []}} if gone else {}
    observed: Observed = {
        **seen,
        "tokens_per_s": _tokens_per_s(server.observed, seen["sample"]),
        "log_silent_s": max(0.0, sent_at - seen["last_line_at"]) if seen["last_line_at"] else None,
        "silent_since": None,
    }
    fields: dict[str, Any] = {"observed": observed}
    if seen["sample"] is not None and server.role == ServerRole.DECODE and server.state == ServerState.READY:
        fields["kv_watch"] = _watched(server, seen["sample"], sent_at)
    return fields


def keep(server: Server, fields: dict[str, Any]) -> None:
    """Writes them, and tells the browsers when the card changes. Call it in a transaction."""
    if not fields:
        return
    shown_before = _shown(server)
    if not Server.objects.filter(pk=server.pk, generation=server.generation).update(**fields):
        return
    for name, value in fields.items():
        setattr(server, name, value)
    if _shown(server) != shown_before:
        server_changed.send(sender=Server, server=server, old_state=ServerState(server.state))


def _shown(server: Server) -> tuple[object, ...]:
    """What of an observation changes the card; loads reach the browser on a way of their own."""
    observed = server.observed
    return (
        observed.get("phase"),
        observed.get("healthy"),
        observed.get("group_pids") if server.state in AT_REST else None,
        server.kv_watch.get("not_transferred"),
        (observed.get("log_silent_s") or 0.0) > SILENT_LOG_AFTER_S,
        (observed.get("cause") or {}).get("code"),
    )


def _tokens_per_s(before: dict[str, Any], sample: EngineSample | None) -> float | None:
    old: EngineSample | None = before.get("sample")
    if sample is None or old is None:
        return None
    if sample["at"] == old["at"]:
        return before.get("tokens_per_s")
    made = sample["generation_tokens"] - old["generation_tokens"]
    return round(max(0.0, made) / max(0.001, sample["at"] - old["at"]), 1)


def _watched(server: Server, sample: EngineSample, sent_at: float) -> handoffs.KvWatch:
    watch: handoffs.KvWatch = server.kv_watch
    if handoffs.kv_arrived(watch, sample):
        # When the counters were read, by our clock: the host's own may be wrong, its differences are right.
        return handoffs.fresh(sample, timezone.now().timestamp() - max(0.0, sent_at - sample["at"]))
    if sample["local_compute_tokens"] == watch["local"]:
        return watch
    return handoffs.judge(watch, sample, _split_traffic(server, watch["since"]))


def _split_traffic(server: Server, since: float) -> handoffs.SplitTraffic:
    answered = RequestRecord.objects.filter(
        decode_server_id=server.pk,
        route="split",
        outcome="ok",
        received_at__gte=datetime.fromtimestamp(since, tz=timezone.get_current_timezone()),
    )
    found = answered.aggregate(requests=Count("pk"), tokens=Sum("prompt_tokens"))
    return handoffs.SplitTraffic(requests=found["requests"], prompt_tokens=found["tokens"] or 0)
