"""What the request pages ask: the list with its filters, and one request with those that shared its server."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from django.conf import settings
from django.db.models import Q, QuerySet

from console.live.events import RequestRow
from console.traffic.models import RequestRecord

LONGEST_STREAM = timedelta(minutes=30)
"""How far back we look for requests that may still have run. A stream that began earlier is not found."""
SHARED_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Filters:
    """Empty values filter nothing."""

    deployment: str = ""
    server: str = ""
    """A server's name, on either side."""
    outcome: str = ""
    route: str = ""
    min_ttft_ms: float | None = None
    text: str = ""
    """Part of a request id."""
    since: datetime | None = None
    until: datetime | None = None


def find(filters: Filters) -> "QuerySet[RequestRecord]":
    """Newest first. Gaps are left out: a list shows their largest alone."""
    found = RequestRecord.objects.select_related("deployment").defer("gaps_ms")
    if filters.deployment:
        found = found.filter(deployment__name=filters.deployment)
    if filters.server:
        found = found.filter(Q(prefill_server=filters.server) | Q(decode_server=filters.server))
    if filters.outcome:
        found = found.filter(outcome=filters.outcome)
    if filters.route:
        found = found.filter(route=filters.route)
    if filters.min_ttft_ms is not None:
        found = found.filter(streamed=True, first_token_ms__gte=filters.min_ttft_ms)
    if filters.text:
        found = found.filter(request_id__icontains=filters.text)
    if filters.since is not None:
        found = found.filter(received_at__gte=filters.since)
    if filters.until is not None:
        found = found.filter(received_at__lt=filters.until)
    return found


def latest_rows(deployment_id: int, count: int) -> list[RequestRow]:
    """Oldest first, like the live view's own."""
    records = RequestRecord.objects.filter(deployment_id=deployment_id)[:count]
    return [request_row(record) for record in reversed(records)]


def request_row(record: RequestRecord) -> RequestRow:
    """A stored request in the shape of the live view. Reads its gaps."""
    return {
        "request_id": record.request_id,
        "t": round(record.received_at.timestamp(), 3),
        "model": record.model,
        "path": record.path,
        "streamed": record.streamed,
        "route": record.route,
        "reason": record.reason,
        "prefill": record.prefill_server,
        "decode": record.decode_server,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "ttft_ms": _tenths(record.first_token_ms),
        "p50_gap_ms": _tenths(median(record.gaps_ms)) if record.gaps_ms else None,
        "max_gap_ms": _tenths(record.max_gap_ms),
        "e2e_ms": _tenths(record.finished_ms),
        "status": record.status,
        "outcome": record.outcome,
        "error": record.error,
    }


def _tenths(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms, 1)


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """A long prompt that was computed on the server of the request looked at, while it streamed."""

    record: RequestRecord
    start: datetime
    end: datetime
    worst_gap_ms: float | None
    """The largest gap of the request looked at that overlaps it; None when no gap does."""


@dataclass(frozen=True, slots=True)
class Detail:
    record: RequestRecord
    shared: Sequence[RequestRecord]
    """Requests that were on its decode (or plain) server at some time of its life there."""
    long_prompts: Sequence[LongPrompt]


def detail(request_id: str) -> Detail | None:
    """None: no such request. Three queries."""
    record = RequestRecord.objects.select_related("deployment").filter(request_id=request_id).first()
    if record is None:
        return None
    return Detail(record, _shared(record), _long_prompts(record))


def _shared(record: RequestRecord) -> list[RequestRecord]:
    if record.decode_server_id is None:
        return []
    start, end = on_decode_server(record)
    candidates = RequestRecord.objects.filter(
        decode_server_id=record.decode_server_id, received_at__gt=start - LONGEST_STREAM, received_at__lt=end
    ).exclude(pk=record.pk)
    return [other for other in candidates if _overlaps(on_decode_server(other), (start, end))][:SHARED_SHOWN]


def _long_prompts(record: RequestRecord) -> list[LongPrompt]:
    """Prompts that the server itself computed: of requests that were not split, and of its own prefill role."""
    if record.decode_server_id is None or record.first_token_ms is None:
        return []
    stream = (_after(record, record.first_token_ms), _after(record, record.last_token_ms or record.finished_ms))
    computed_there = Q(decode_server_id=record.decode_server_id, prefill_server_id=None)
    candidates = RequestRecord.objects.filter(
        computed_there | Q(prefill_server_id=record.decode_server_id),
        prompt_tokens__gte=settings.LONG_PROMPT_TOKENS,
        received_at__gt=stream[0] - LONGEST_STREAM,
        received_at__lt=stream[1],
    ).exclude(pk=record.pk)
    found = [(other, prompt_computed(other)) for other in candidates.defer("gaps_ms")[:SHARED_SHOWN]]
    return [
        LongPrompt(other, *span, worst_gap_ms=worst_gap_within(record, span))
        for other, span in found
        if _overlaps(span, stream)
    ]


Span = tuple[datetime, datetime]


def on_decode_server(record: RequestRecord) -> Span:
    """From the moment it was sent there to its end."""
    return _after(record, record.decode_sent_ms), _after(record, record.finished_ms)


def prompt_computed(record: RequestRecord) -> Span:
    """From sending the prompt to the answer of the prefill server; without one, to the first token, which a request
    that was not streamed shows only at its end."""
    if record.prefill_server_id is not None:
        return _after(record, record.prefill_sent_ms), _after(record, record.prefill_answered_ms or record.finished_ms)
    end_ms = record.first_token_ms if record.first_token_ms is not None else record.finished_ms
    return _after(record, record.decode_sent_ms), _after(record, end_ms)


def worst_gap_within(record: RequestRecord, span: Span) -> float | None:
    """The largest gap that overlaps `span`."""
    end_ms = record.first_token_ms or 0.0
    worst: float | None = None
    for gap_ms in record.gaps_ms:
        gap = (_after(record, end_ms), _after(record, end_ms + gap_ms))
        end_ms += gap_ms
        if _overlaps(gap, span) and (worst is None or gap_ms > worst):
            worst = gap_ms
    return worst


def _after(record: RequestRecord, ms: float | None) -> datetime:
    return record.received_at + timedelta(milliseconds=ms or 0.0)


def _overlaps(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]
