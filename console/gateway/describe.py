"""A router's record in the words of the live view and of the stored requests. Pure."""

from statistics import median

from console.gateway.table import Names
from console.live.events import FirstTokenEvent, LongPromptEvent, RequestRow
from console.traffic.wire import FinishedRequest
from routing.record import Record


def first_token(record: Record, names: Names) -> FirstTokenEvent:
    ttft_ms = record.first_token_ms or 0.0
    return {
        "type": "ttft",
        "t": round(record.received_at + ttft_ms / 1000, 3),
        "request_id": record.request_id,
        "ttft_ms": _rounded(ttft_ms),
        "prompt_tokens": _prompt_tokens(record),
        "route": record.route or "",
        "prefill": _name(record.prefill_server, names),
        "decode": _name(record.decode_server, names),
    }


def long_prompt(record: Record, names: Names, from_tokens: int) -> LongPromptEvent | None:
    """Once the prompt is on its way to the server that computes it; None before, and for a shorter prompt."""
    sent_ms, server = record.prefill_sent_ms, record.prefill_server
    if sent_ms is None:
        sent_ms, server = record.decode_sent_ms, record.decode_server
    tokens = _prompt_tokens(record)
    if sent_ms is None or tokens < from_tokens:
        return None
    t = round(record.received_at + sent_ms / 1000, 3)
    return {"type": "long_prompt", "t": t, "server": _name(server, names), "prompt_tokens": tokens}


def request_row(record: Record, names: Names) -> RequestRow:
    return {
        "request_id": record.request_id,
        "t": round(record.received_at, 3),
        "model": names.models.get(record.deployment, ""),
        "path": record.path,
        "streamed": record.streamed,
        "route": record.route or "",
        "reason": record.reason,
        "prefill": _name(record.prefill_server, names),
        "decode": _name(record.decode_server, names),
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "ttft_ms": _rounded_or_none(record.first_token_ms),
        "p50_gap_ms": _rounded(median(record.gaps_ms)) if record.gaps_ms else None,
        "max_gap_ms": _rounded(max(record.gaps_ms)) if record.gaps_ms else None,
        "e2e_ms": _rounded_or_none(record.finished_ms),
        "status": record.status,
        "outcome": record.outcome,
        "error": record.error,
    }


def finished(record: Record, names: Names) -> FinishedRequest:
    return {
        "request_id": record.request_id,
        "deployment": record.deployment,
        "path": record.path,
        "streamed": record.streamed,
        "received_at": record.received_at,
        "route": record.route or "",
        "reason": record.reason,
        "prefill_server": _name(record.prefill_server, names),
        "decode_server": _name(record.decode_server, names),
        "prefill_server_id": _id(record.prefill_server),
        "decode_server_id": _id(record.decode_server),
        "chosen_ms": record.chosen_ms,
        "prefill_sent_ms": record.prefill_sent_ms,
        "prefill_answered_ms": record.prefill_answered_ms,
        "decode_sent_ms": record.decode_sent_ms,
        "decode_opened_ms": record.decode_opened_ms,
        "first_token_ms": record.first_token_ms,
        "last_token_ms": record.last_token_ms,
        "finished_ms": record.finished_ms,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "gaps_ms": [_rounded(gap) for gap in record.gaps_ms],
        "status": record.status,
        "outcome": record.outcome,
        "error": record.error,
        "attempts": record.attempts,
        "orphaned_handoff": record.orphaned_handoff,
    }


def _prompt_tokens(record: Record) -> int:
    return record.estimated_prompt_tokens if record.prompt_tokens is None else record.prompt_tokens


def _name(server_id: str | None, names: Names) -> str:
    if server_id is None:
        return ""
    known = names.servers.get(server_id)
    return known.name if known else server_id


def _id(server_id: str | None) -> int | None:
    return int(server_id) if server_id is not None else None


def _rounded(value_ms: float) -> float:
    return round(value_ms, 1)


def _rounded_or_none(value_ms: float | None) -> float | None:
    return None if value_ms is None else _rounded(value_ms)
