"""How far a start has come, from the lines that vLLM writes."""

import time
from datetime import datetime

import pytest

from console.launch.contracts import Phase
from console.launch.phases import Progress, advance, parse
from console.launch.watch import line_time

API = "(APIServer pid=101) INFO 11-29 14:50:06 [api_utils.py:286] "
ENGINE = "(EngineCore pid=102) INFO 11-29 14:50:21 [core.py:113] "
WORKER = "(Worker pid=103) INFO 11-29 14:50:24 [base_worker.py:901] "
START: list[tuple[str, Phase]] = [
    ("/env/lib/some.py:3: UserWarning: something about a library", "imports"),
    (API + " █▄█▀ █     █     █     █  model   /models/tiny", "imports"),
    (API + "  █  ▀▀  version 0.31.0", "imports"),
    (API + "non-default args: {'model': '/models/tiny', 'api_key': ['***']}", "imports"),
    (API + "Resolved architecture: LlamaForCausalLM", "model"),
    (API + "Using max model len 8192", "model"),
    (API + "NIXL is available", "model"),
    (ENGINE + "Initializing a V1 LLM engine (v0.31.0) with config: model='/models/tiny'", "model"),
    (WORKER + "Starting to load model /models/tiny...", "weights"),
    ("Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 30.20it/s]", "weights"),
    (WORKER + "Loading weights took 0.05 seconds", "weights"),
    (ENGINE + "CPU KV cache size: 262,144 tokens, Maximum concurrency for 8,192 tokens per request", "kv_cache"),
    (WORKER + "Creating v1 connector with name: NixlPullConnector and engine_id: 6f0c-1", "connector"),
    (WORKER + "Initializing NIXL wrapper", "nixl"),
    ("2026-11-29 15:15:05 NIXL INFO    _api.py:407 Backend UCX was instantiated", "nixl"),
    (ENGINE + "Creating v1 connector with name: NixlPullConnector and engine_id: 6f0c-1", "nixl"),
    (ENGINE + "init engine (profile, create kv cache, warmup model) took 0.52 s", "warmup"),
    (API + "Starting vLLM server on http://127.0.0.1:21000", "warmup"),
    ("INFO:     Application startup complete.", "listening"),
    ('INFO:     127.0.0.1:5 - "GET /v1/models HTTP/1.1" 200 OK', "listening"),
]  # fmt: skip


def read(lines: list[str]) -> Progress:
    progress = Progress()
    for number, line in enumerate(lines):
        advance(progress, parse(line), float(number))
    return progress


def test_nothing_written_yet_means_spawned() -> None:
    assert Progress().phase == "spawned"


@pytest.mark.parametrize("count", range(1, len(START) + 1))
def test_each_line_of_a_start_shows_its_phase(count: int) -> None:
    assert read([line for line, _ in START[:count]]).phase == START[count - 1][1]


def test_a_start_tells_version_engine_id_and_kv_size() -> None:
    progress = read([line for line, _ in START])
    assert (progress.version, progress.engine_id, progress.kv_cache_tokens) == ("0.31.0", "6f0c-1", 262144)
    assert (progress.cause, progress.first_error) == (None, "")


def test_each_phase_keeps_the_time_of_its_first_line() -> None:
    times = read([line for line, _ in START]).phase_times
    assert (times["imports"], times["model"], times["connector"], times["listening"]) == (0, 4, 12, 18)


def test_a_plain_server_skips_connector_and_nixl() -> None:
    progress = read([line for line, phase in START if phase not in ("connector", "nixl")])
    assert progress.phase == "listening"
    assert not {"connector", "nixl"} & set(progress.phase_times)


def test_what_was_logged_before_it_listens_did_not_stop_it() -> None:
    trouble = "(Worker pid=3) ERROR 11-29 14:50:06 [w.py:1] torch.OutOfMemoryError: CUDA out of memory"
    progress = read([trouble, "INFO:     Application startup complete."])
    assert (progress.cause, progress.first_error) == (None, "")


def test_a_port_that_answers_before_the_log_is_read_hides_nothing_of_it() -> None:
    progress = Progress()
    progress.reach("listening", 0.0)
    for line, _ in START:
        advance(progress, parse(line), 1.0)
    assert (progress.phase, progress.engine_id, progress.version) == ("listening", "6f0c-1", "0.31.0")
    assert {"model", "kv_cache", "nixl", "warmup"} <= set(progress.phase_times)


@pytest.mark.parametrize(
    ("raw", "process", "level", "text"),
    [
        ("(EngineCore pid=9) ERROR 11-29 14:50:06 [core.py:9] no", "EngineCore", "ERROR", "no"),
        ("(Worker_TP0 pid=9) WARNING 11-29 14:50:06 [a.py:9] hm", "Worker", "WARNING", "hm"),
        ("(Worker_DP0_TP1 pid=9) INFO 11-29 14:50:06 [a.py:9] ", "Worker", "INFO", ""),
        ("(APIServer pid=9) Traceback (most recent call last):", "APIServer", "", "Traceback (most recent call last):"),
        ("INFO 11-29 14:50:06 [a.py:9] early", "", "INFO", "early"),
        ("INFO:     Uvicorn", "", "INFO", "Uvicorn"),
        ("plain text", "", "", "plain text"),
    ],
)
def test_lines_are_taken_apart(raw: str, process: str, level: str, text: str) -> None:
    line = parse(raw)
    assert (line.process, line.level, line.text) == (process, level, text)


def stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment).strftime("%m-%d %H:%M:%S")


def test_a_line_read_as_it_was_written_gets_the_time_of_reading() -> None:
    now = time.time()
    assert line_time(stamp(now - 1), now) == now


def test_a_line_read_long_after_keeps_its_own_time() -> None:
    now = float(int(time.time()))
    assert line_time(stamp(now - 600), now) == now - 600


@pytest.mark.parametrize("text", ["", "02-31 25:00:00", "12-31 23:59:59"])
def test_a_time_that_cannot_be_is_not_used(text: str) -> None:
    now = datetime(2026, 3, 1, 12).timestamp()
    assert line_time(text, now) == now
