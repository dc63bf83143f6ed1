"""Logs that vLLM 0.31 wrote on a CPU-only host, as the agent read them: a start that worked and starts that failed.

Shortened: without the program text of tracebacks, and long lines cut. Paths and addresses are replaced.
"""

from pathlib import Path

import pytest

from console.launch import phases
from console.launch.contracts import PHASES
from console.launch.logs import LogReader
from console.launch.phases import Progress

LOGS = Path(__file__).parent / "vllm_logs"


def read(name: str) -> Progress:
    progress, reader = Progress(), LogReader(LOGS / f"{name}.log")
    for number, raw in enumerate([*reader.new_lines(), *reader.rest()]):
        phases.advance(progress, phases.parse(raw), float(number))
    return progress


def test_a_prefill_server_comes_up_through_every_phase_in_order() -> None:
    progress = read("prefill_server")
    assert progress.phase == "listening"
    assert list(progress.phase_times) == [phase for phase in PHASES if phase != "spawned"]


def test_it_tells_version_engine_id_and_kv_size() -> None:
    progress = read("prefill_server")
    assert (progress.version, progress.engine_id, progress.kv_cache_tokens) == ("0.31.0", "engine-1-1", 262144)


@pytest.mark.parametrize(
    ("name", "code", "phase"),
    [
        ("unknown_argument", "bad_argument", "imports"),
        ("bad_kv_transfer_config", "bad_kv_transfer_config", "imports"),
        ("side_channel_in_use", "side_channel_in_use", "warmup"),
        ("context_too_long", "context_too_long", "model"),
        ("unknown_connector", "unknown_connector", "model"),
        ("model_not_found", "model_not_found", "imports"),
        ("model_not_downloaded", "model_not_downloaded", "imports"),
        ("nixl_missing", "nixl_missing", "connector"),
        ("out_of_memory", "out_of_memory", "weights"),
        ("kv_cache_too_small", "kv_cache_too_small", "weights"),
    ],
)
def test_a_start_that_failed_shows_its_first_cause_and_how_far_it_came(name: str, code: str, phase: str) -> None:
    progress = read(name)
    assert progress.cause is not None
    assert (progress.cause["code"], progress.phase) == (code, phase)
