"""`make bench`: routers side by side in front of the same two mock engines, in one run on one machine.

Every round starts each contestant afresh, warms it up, loads it and stops it; the order turns from round to round. CPU
time is that of the contestant's own processes over the loaded part. What is added is told against the same loads on the
decode server alone, once per round for all, beside viewers for each. The figures are the medians of the rounds, with
the ratio to the first contestant. Absolute numbers belong to the machine they were measured on; the ratios travel.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import IO

from console.embedded import free_port
from tests.benchmark.contestants import CONTESTANTS, Contestant, Place
from tests.benchmark.load import LoadResult
from tests.benchmark.processes import ROOT, allow_many_connections, apply_load, held_streams, mock_engines

CONCURRENCY = 64
TOKENS = 64
GAP_MS = 10.0
SPREAD_S = 0.67
"""A little longer than an answer takes, so that requests come one by one all the time."""
SETTLE_S = 2.0
"""Some routers listen before their first health check is through."""
AT_ONCE_REQUESTS = 3000
HELD_STREAMS = 2000
HOLD_GAP_MS = 600_000.0
LABELS = {
    "cpu_us_per_token": "CPU per token, µs",
    "cpu_us_per_request": "CPU per request, µs",
    "cpu_us_at_once": "CPU per request, tokens all at once, µs",
    "added_ttft_p50_ms": "added TTFT p50, ms",
    "added_ttft_p99_ms": "added TTFT p99, ms",
    "added_gap_p99_ms": "added gap p99, ms",
    "spread_ttft_p50_ms": "requests one by one: added TTFT p50, ms",
    "spread_ttft_p99_ms": "requests one by one: added TTFT p99, ms",
    "spread_gap_p99_ms": "requests one by one: added gap p99, ms",
    "requests_per_s": "requests per s",
    "resident_mb": "resident memory, shared counted once, MB",
    "kb_per_idle_stream": f"memory per idle stream, kB (of {HELD_STREAMS})",
    "errors": "errors",
}
NO_RATIO = ("added_ttft_p50_ms", "added_ttft_p99_ms", "added_gap_p99_ms", "spread_gap_p99_ms", "errors")
"""Differences that may be near zero: their ratio says nothing."""
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Direct:
    """The loads on the decode server alone: what is added is told against them."""

    close: LoadResult
    spread: LoadResult


def directly(decode: str, requests: int) -> Direct:
    port = int(decode.rpartition(":")[2])
    return Direct(
        apply_load(port, requests, CONCURRENCY),
        apply_load(port, requests, CONCURRENCY, SPREAD_S),
    )


def measure_speed(contestant: Contestant, place: Place, requests: int, direct: Direct) -> Figures:
    """One round of one contestant. `direct` is this round's, measured anew beside viewers."""
    with contestant.start(place) as process:
        time.sleep(SETTLE_S)
        apply_load(place.port, 2 * CONCURRENCY, CONCURRENCY)
        if contestant.has_viewers:
            direct = directly(place.decode, requests)
        before_s = process.cpu_s()
        result = apply_load(place.port, requests, CONCURRENCY)
        used_us = (process.cpu_s() - before_s) * 1e6
        figures = {
            "cpu_us_per_request": used_us / requests,
            "cpu_us_per_token": used_us / max(1, result["tokens"]),
            "requests_per_s": result["requests_per_s"],
            "resident_mb": process.resident_bytes() / 1e6,
            "errors": result["errors"],
        }
        figures |= added("added", result, direct.close)
        result = apply_load(place.port, requests, CONCURRENCY, SPREAD_S)
        figures["errors"] += result["errors"]
        return figures | added("spread", result, direct.spread)


def added(prefix: str, result: LoadResult, direct: LoadResult) -> Figures:
    return {
        f"{prefix}_ttft_p50_ms": result["ttft_p50_ms"] - direct["ttft_p50_ms"],
        f"{prefix}_ttft_p99_ms": result["ttft_p99_ms"] - direct["ttft_p99_ms"],
        f"{prefix}_gap_p99_ms": result["gap_p99_ms"] - direct["gap_p99_ms"],
    }


def measure_at_once(contestant: Contestant, place: Place) -> Figures:
    """What a request costs beside its tokens, which come at once here: as fast as they can be asked for."""
    with contestant.start(place) as process:
        time.sleep(SETTLE_S)
        apply_load(place.port, 2 * CONCURRENCY, CONCURRENCY)
        before_s = process.cpu_s()
        apply_load(place.port, AT_ONCE_REQUESTS, CONCURRENCY)
        return {"cpu_us_at_once": (process.cpu_s() - before_s) * 1e6 / AT_ONCE_REQUESTS}


def measure_memory(contestant: Contestant, place: Place) -> Figures:
    """Growth of resident memory while many streams are open and say nothing, in processes that have served before:
    those made by forking share memory until they first write to it."""
    with contestant.start(place) as process:
        time.sleep(SETTLE_S)
        with held_streams(place.port, CONCURRENCY):
            pass
        before = process.resident_bytes()
        with held_streams(place.port, HELD_STREAMS):
            return {"kb_per_idle_stream": (process.resident_bytes() - before) / HELD_STREAMS / 1e3}


def turned(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def compare(names: list[str], rounds: int, requests: int, log: IO[bytes]) -> dict[str, Figures]:
    measured: dict[str, list[Figures]] = {name: [] for name in names}
    at_once: dict[str, list[Figures]] = {name: [] for name in names}
    with mock_engines(log, TOKENS, GAP_MS) as (prefill, decode):
        for number in range(rounds):
            direct = directly(decode, requests)
            for name in turned(names, number):
                place = Place(free_port(), prefill, decode, log)
                figures = measure_speed(CONTESTANTS[name], place, requests, direct)
                print(f"{name}: {figures['cpu_us_per_token']:.1f} µs of CPU per token", flush=True)
                measured[name].append(figures)
    with mock_engines(log, TOKENS, 0.0) as (prefill, decode):
        for number in range(rounds):
            for name in turned(names, number):
                place = Place(free_port(), prefill, decode, log)
                at_once[name].append(measure_at_once(CONTESTANTS[name], place))
    medians = {name: median(measured[name]) | median(at_once[name]) for name in names}
    with mock_engines(log, 2, HOLD_GAP_MS) as (prefill, decode):
        for name in names:
            medians[name] |= measure_memory(CONTESTANTS[name], Place(free_port(), prefill, decode, log))
    return medians


def median(rounds: list[Figures]) -> Figures:
    return {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}


def table(medians: dict[str, Figures]) -> str:
    yardstick = next(iter(medians.values()))
    lines = [f"{'':44}" + "".join(f"{name:>24}" for name in medians)]
    for key, label in LABELS.items():
        cells = []
        for figures in medians.values():
            is_plain = figures is yardstick or key in NO_RATIO
            cells.append(f"{figures[key]:.2f}" + ("" if is_plain else f" ({figures[key] / yardstick[key]:.2f}x)"))
        lines.append(f"{label:44}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--only", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    args = parser.parse_args()
    allow_many_connections()
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    with (out / "bench.log").open("wb") as log:
        medians = compare(args.only, args.rounds, args.requests, log)
    (out / "bench.json").write_text(json.dumps(medians, indent=2))
    print(table(medians))


if __name__ == "__main__":
    main()
