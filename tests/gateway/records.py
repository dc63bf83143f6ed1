"""Records and names for tests of what the gateway makes of them."""

from array import array
from typing import Any

from console.gateway.table import Names, ServerFacts
from routing.record import Record

NAMES = Names(
    deployment_ids={"chat": 7},
    models={"chat": "tiny"},
    gap_limits_ms={},
    servers={
        "1": ServerFacts("prefill-1", "prefill", "chat"),
        "2": ServerFacts("decode-1", "decode", "chat"),
        "3": ServerFacts("plain-1", "plain", "chat"),
    },
)


def make_record(gaps_ms: list[float] | None = None, **fields: Any) -> Record:
    """A streamed split request that is under way: first token 100 ms after it was read."""
    defaults: dict[str, Any] = {
        "request_id": "r1",
        "deployment": "chat",
        "path": "/v1/chat/completions",
        "streamed": True,
        "received_at": 1000.0,
        "route": "split",
        "prefill_server": "1",
        "decode_server": "2",
        "prefill_sent_ms": 1.0,
        "prefill_answered_ms": 60.0,
        "decode_sent_ms": 61.0,
        "first_token_ms": 100.0,
        "gaps_ms": array("f", gaps_ms or []),
    }
    return Record(**{**defaults, **fields})
