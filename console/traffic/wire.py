"""Finished requests on their way from the routers to the database. JSON in a stream, delivered at least once."""

from datetime import UTC, datetime
from typing import Any, TypedDict

import orjson

from console import valkey
from console.traffic.models import RequestRecord


class FinishedRequest(TypedDict):
    """A `routing.record.Record` with the names its servers had then. Times in ms from `received_at` (Unix seconds)."""

    request_id: str
    deployment: str
    path: str
    streamed: bool
    received_at: float
    route: str
    reason: str
    prefill_server: str
    decode_server: str
    prefill_server_id: int | None
    decode_server_id: int | None
    chosen_ms: float | None
    prefill_sent_ms: float | None
    prefill_answered_ms: float | None
    decode_sent_ms: float | None
    decode_opened_ms: float | None
    first_token_ms: float | None
    last_token_ms: float | None
    finished_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    gaps_ms: list[float]
    status: int
    outcome: str
    error: str
    attempts: int
    orphaned_handoff: bool


COPIED = (
    "path",
    "streamed",
    "route",
    "reason",
    "prefill_server",
    "decode_server",
    "prefill_server_id",
    "decode_server_id",
    "chosen_ms",
    "prefill_sent_ms",
    "prefill_answered_ms",
    "decode_sent_ms",
    "decode_opened_ms",
    "first_token_ms",
    "last_token_ms",
    "finished_ms",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "gaps_ms",
    "status",
    "outcome",
    "attempts",
    "orphaned_handoff",
)

NEVER_EMPTY = ("request_id", "path", "streamed", "received_at", "gaps_ms", "status", "outcome", "attempts")


def stream() -> str:
    return valkey.key("traffic")


def decode(raw: bytes) -> FinishedRequest:
    """Raises ValueError for what is no finished request."""
    found: Any = orjson.loads(raw)
    if not isinstance(found, dict) or missing(found):
        raise ValueError("not a finished request")
    if any(found[name] is None for name in NEVER_EMPTY):
        raise ValueError(f"none of these may be empty: {', '.join(NEVER_EMPTY)}")
    return found  # type: ignore[return-value]


def missing(found: dict[str, Any]) -> set[str]:
    return set(FinishedRequest.__annotations__) - set(found)


def row(request: FinishedRequest, deployments: dict[str, tuple[int, str]]) -> RequestRecord:
    """`deployments` by name: id and served model name. Text is cut to what its column takes."""
    deployment_id, model = deployments.get(request["deployment"], (None, ""))
    values: dict[str, Any] = {name: request[name] for name in COPIED}  # type: ignore[literal-required]
    return RequestRecord(
        **{name: _fitting(name, value) for name, value in values.items()},
        request_id=_fitting("request_id", request["request_id"]),
        error=_fitting("error", request["error"]),
        deployment_id=deployment_id,
        model=model,
        received_at=datetime.fromtimestamp(request["received_at"], UTC),
        max_gap_ms=max(request["gaps_ms"], default=None),
    )


def _fitting(name: str, value: Any) -> Any:
    limit = getattr(RequestRecord._meta.get_field(name), "max_length", None)
    if limit is None or not isinstance(value, str):
        return value
    return value.replace("\x00", "")[:limit]
