"""Finished requests for tests: on the wire and as rows."""

from datetime import UTC, datetime
from itertools import count
from typing import Any, cast

import orjson
import redis

from console.traffic import wire
from console.traffic.models import RequestRecord
from console.traffic.wire import FinishedRequest

_number = count(1)
START = 1_800_000_000.0


def finished(**fields: Any) -> FinishedRequest:
    """A split, streamed request that went well: first token after 100 ms, ended after 200 ms."""
    defaults: dict[str, Any] = {
        "request_id": f"r{next(_number)}",
        "deployment": "chat",
        "path": "/v1/chat/completions",
        "streamed": True,
        "received_at": START,
        "route": "split",
        "reason": "",
        "prefill_server": "prefill-1",
        "decode_server": "decode-1",
        "prefill_server_id": 1,
        "decode_server_id": 2,
        "chosen_ms": 0.5,
        "prefill_sent_ms": 1.0,
        "prefill_answered_ms": 60.0,
        "decode_sent_ms": 61.0,
        "decode_opened_ms": 90.0,
        "first_token_ms": 100.0,
        "last_token_ms": 190.0,
        "finished_ms": 200.0,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": 4,
        "gaps_ms": [30.0, 30.0, 30.0],
        "status": 200,
        "outcome": "ok",
        "error": "",
        "attempts": 1,
        "orphaned_handoff": False,
    }
    return cast(FinishedRequest, {**defaults, **fields})


def send(client: "redis.Redis", *requests: FinishedRequest) -> None:
    for request in requests:
        client.xadd(wire.stream(), {"r": orjson.dumps(request)})


def store(deployment_id: int | None = None, after_s: float = 0.0, **fields: Any) -> RequestRecord:
    """A row; `after_s` counts from START."""
    record = wire.row(finished(received_at=START + after_s, **fields), {})
    record.deployment_id = deployment_id
    record.save(force_insert=True)
    return record


def moment(after_s: float) -> datetime:
    return datetime.fromtimestamp(START + after_s, UTC)
