"""The last minutes of the charts: what is kept, what is merged, and that it stays bounded."""

from typing import Any, cast

import orjson

from console.live import history
from console.live.bus import KEPT_S
from console.live.events import GapsEvent
from console.live.history import History, merged

NOW = 10_000.0


def dot(t: float) -> Any:
    return {"type": "ttft", "t": t, "ttft_ms": 1.0}


def gaps(t: float, server: str = "decode-1", **fields: Any) -> GapsEvent:
    defaults: Any = {
        "type": "gaps",
        "t": t,
        "server": server,
        "role": "decode",
        "count": 2,
        "p50_ms": 10.0,
        "p99_ms": 20.0,
        "max_ms": 20.0,
        "stalled_ms": 0.0,
        "tokens": 2,
        "points": [(t, 10.0), (t, 20.0)],
    }
    return cast(GapsEvent, defaults | fields)


def request(t: float, e2e_ms: float = 0.0) -> Any:
    return {"type": "request", "request": {"request_id": "r", "t": t, "e2e_ms": e2e_ms}}


def kept(*events: Any) -> history.Charts:
    found = History()
    for event in events:
        found.add(event)
    return found.charts(NOW)


def test_dots_prompts_and_requests_are_kept() -> None:
    prompt: Any = {"type": "long_prompt", "t": NOW, "server": "p", "prompt_tokens": 5000}
    charts = kept(dot(NOW), prompt, request(NOW))
    assert (len(charts["ttft"]), len(charts["long_prompts"]), len(charts["requests"])) == (1, 1, 1)


def test_cards_and_loads_are_not_kept() -> None:
    assert not any(kept({"type": "server"}, {"type": "load"}, {"type": "move"}, {"type": "server_removed"}).values())


def test_what_is_older_than_five_minutes_is_left_out() -> None:
    charts = kept(dot(NOW - KEPT_S - 1), dot(NOW - 1), gaps(NOW - KEPT_S - 1), request(NOW - KEPT_S - 1))
    assert [event["t"] for event in charts["ttft"]] == [NOW - 1]
    assert charts["gaps"] == []
    assert charts["requests"] == []


def test_a_long_request_that_ended_just_now_is_shown() -> None:
    assert len(kept(request(NOW - KEPT_S - 60, e2e_ms=(KEPT_S + 59) * 1000))["requests"]) == 1


def test_gaps_of_one_second_and_server_become_one_entry() -> None:
    charts = kept(gaps(NOW + 0.1), gaps(NOW + 0.2), gaps(NOW + 0.3, server="decode-2"), gaps(NOW + 1.1))
    assert [(event["server"], event["count"]) for event in charts["gaps"]] == [
        ("decode-1", 4),
        ("decode-2", 2),
        ("decode-1", 2),
    ]


def test_merged_figures_never_look_calmer_than_what_they_are_made_of() -> None:
    calm = gaps(NOW, count=30, p50_ms=10.0, tokens=30)
    stall = gaps(NOW, count=10, p50_ms=50.0, p99_ms=900.0, max_ms=950.0, stalled_ms=750.0, tokens=10)
    both = merged(calm, stall)
    assert (both["count"], both["tokens"], both["stalled_ms"]) == (40, 40, 750.0)
    assert (both["p50_ms"], both["p99_ms"], both["max_ms"]) == (20.0, 900.0, 950.0)


def test_the_worst_points_of_a_second_survive() -> None:
    many = gaps(NOW, points=[(NOW + number / 100, float(number)) for number in range(40)])
    [event] = kept(many, gaps(NOW, points=[(NOW, 500.0)]))["gaps"]
    assert len(event["points"]) == history.POINTS_PER_SECOND
    assert max(gap for _, gap in event["points"]) == 500.0


def test_memory_and_snapshot_are_bounded_whatever_the_traffic() -> None:
    found = History()
    for number in range(20_000):
        found.add(dot(NOW))
        found.add(request(NOW))
        found.add(gaps(NOW + number, points=[(NOW, 1.0)] * 40))
    charts = found.charts(NOW)
    assert len(charts["ttft"]) == history.DOTS_KEPT
    assert len(charts["requests"]) == history.REQUESTS_KEPT
    assert len(charts["gaps"]) == history.SECONDS_KEPT


def test_old_entries_are_forgotten() -> None:
    found = History()
    for event in (dot(NOW), gaps(NOW), request(NOW)):
        found.add(event)
    found.forget_before(NOW + 10)
    assert not any(found.charts(NOW).values())


def test_charts_can_be_sent() -> None:
    assert orjson.dumps(kept(dot(NOW), gaps(NOW), request(NOW)))
