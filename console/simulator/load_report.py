"""How busy the server is, told in a header of a whole answer to whoever asks for it in one of these forms."""

from __future__ import annotations

import json
import re

from .wire import Headers, HttpRequest

ASKED_IN = "endpoint-load-metrics-format"
TOLD_IN = "endpoint-load-metrics"
FORMATS = ("text", "json")
GAUGES = ("num_requests_waiting", "kv_cache_usage_perc")


def is_asked(request: HttpRequest) -> bool:
    return request.headers.get(ASKED_IN, "").lower() in FORMATS


def load_headers(request: HttpRequest, metrics: str) -> Headers:
    """`metrics`: as /metrics has them."""
    told = {name: _value(name, metrics) for name in GAUGES}
    if request.headers[ASKED_IN].lower() == "json":
        return [(TOLD_IN, f"JSON {json.dumps({'named_metrics': told})}")]
    return [(TOLD_IN, "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in told.items()))]


def _value(name: str, metrics: str) -> float:
    found = re.search(rf"^vllm:{name}\{{[^}}]*\}} (\S+)", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0
