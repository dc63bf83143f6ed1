"""The router alone, as a process of its own: no database, no broker."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from routing import how_it_runs
from routing.command import parse, policy_of
from routing.table import Policy, Timeouts
from tests.own import held_port
from tests.routing.crew import figures
from tests.routing.scripted import Answer, Client, Engine, Seen, Wire, ask, chat_body, lists, prefills, streams, until
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def router(*args: str) -> AsyncIterator[int]:
    """A router process; its port. It ends cleanly on SIGTERM."""
    with held_port() as port:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "routing", "--port", str(port), *args, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        try:
            await eventually(port, "/healthz", 200)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(LIMIT_S):
                await process.communicate()
    assert process.returncode in (0, -signal.SIGTERM)


async def eventually(port: int, path: str, status: int, body: object = None) -> Answer:
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                answer = await ask(port, "GET" if body is None else "POST", path, body)
                if answer.status == status:
                    return answer
            except (OSError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.05)


async def test_it_starts_before_its_servers_and_serves_when_they_come() -> None:
    engine = Engine(lists())
    with held_port() as port:
        async with router("--plain", f"http://127.0.0.1:{port}") as at:
            waiting = await ask(at, "POST", "/v1/chat/completions", chat_body())
            assert (waiting.status, "retry-after" in waiting.headers) == (503, True)
            await engine.start(port)
            answer = await eventually(at, "/v1/chat/completions", 200, chat_body())
            assert answer.headers["x-switchyard-route"] == "plain"
        await engine.stop()


async def test_it_splits_and_shows_health_and_metrics() -> None:
    prefill, decode = Engine(prefills), Engine(lists())
    await prefill.start()
    await decode.start()
    async with router("--prefill", prefill.url, "--decode", decode.url, "--model", "m") as at:
        answer = await ask(at, "POST", "/v1/chat/completions", chat_body(stream=True))
        health = [(await ask(at, "GET", path)).status for path in ("/healthz", "/health")]
        counted = await figures(at)
        page = await ask(at, "GET", "/somewhere")
    assert answer.headers["x-switchyard-route"] == "split"
    assert health == [200, 200]
    assert counted['switchyard_router_requests_total{deployment="alone",outcome="ok",route="split"}'] == 1
    assert (page.status, "error" in page.json) == (404, True)
    await prefill.stop()
    await decode.stop()


async def test_its_keys_are_asked_for() -> None:
    engine = Engine(lists())
    await engine.start()
    async with router("--plain", engine.url, "--model", "m", "--api-key", "secret") as at:
        refused = await ask(at, "POST", "/v1/chat/completions", chat_body())
        served = await ask(at, "POST", "/v1/chat/completions", chat_body(), {"authorization": "Bearer secret"})
    assert (refused.status, served.status) == (401, 200)
    await engine.stop()


async def test_it_says_why_it_serves_no_model_when_the_servers_ask_for_a_key() -> None:
    async def refuses(seen: Seen, wire: Wire) -> None:
        await wire.json({"error": "Unauthorized"}, 401)

    engine = Engine(refuses)
    await engine.start()
    words = ["--port", "0", "--workers", "1", "--plain", engine.url]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "routing", *words, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            told = [(await process.stderr.readline()).decode().strip() for _ in range(3)]
        assert "refused the router's own key (401)" in told[2]
        assert told[2].endswith("--server-api-key.")
        await until(lambda: len(engine.seen) >= 3)
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            _, rest = await process.communicate()
    assert rest == b"", "it says it once"
    await engine.stop()


async def test_it_lets_a_running_stream_end_when_it_is_stopped() -> None:
    engine = Engine(lists(then=streams(gap_s=0.3)))
    await engine.start()
    async with router("--plain", engine.url, "--model", "m") as at:
        client = Client(at)
        await client.__aenter__()
        await client.chat(stream=True)
        await client.head()
    answer = b""
    while chunk := await client.chunk():
        answer += chunk
    client.writer.close()
    assert b"[DONE]" in answer
    await engine.stop()


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_says_how_it_runs_and_where_it_listens_and_nothing_of_requests(workers: int) -> None:
    engine = Engine(lists())
    await engine.start()
    words = ["--port", "0", "--workers", str(workers), "--plain", engine.url, "--model", "m"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "routing", *words, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            told = [(await process.stderr.readline()).decode().strip() for _ in range(2)]
        port = int(told[1].split("http://127.0.0.1:")[1].split()[0])
        await eventually(port, "/v1/chat/completions", 200, chat_body())
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            _, rest = await process.communicate()
    with_workers = " with 2 workers" if workers == 2 else ""
    assert told[0] == f"INFO routing.command: The router runs {how_it_runs()}."
    assert told[1] == f"INFO routing.command: listening on http://127.0.0.1:{port}{with_workers}"
    assert rest == b""
    await engine.stop()


def test_a_level_of_logging_that_is_none_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--plain", "http://127.0.0.1:9", "--log-level", "nonsense"])
    assert "'critical', 'error', 'warning', 'info', 'debug'" in capsys.readouterr().err


def test_settings_are_read_by_name() -> None:
    policy = policy_of(["short_prompt_tokens=64", "when_no_pair=refuse", "prefix_affinity=false", "idle_s=none"])
    assert policy == Policy(
        short_prompt_tokens=64, when_no_pair="refuse", prefix_affinity=False, timeouts=Timeouts(idle_s=None)
    )


@pytest.mark.parametrize(
    "settings", [["nonsense=1"], ["retries"], ["retries=many"], ["when_no_pair=maybe"], ["timeouts=1"]]
)
def test_wrong_settings_are_refused_in_words(settings: Sequence[str]) -> None:
    with pytest.raises(ValueError, match=settings[0].partition("=")[0]):
        policy_of(settings)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("retries=x", "expected a whole number from 0"),
        ("retries=-1", "expected a whole number from 0"),
        ("busy_decode_streams=1.5", "expected a whole number from 0 or none"),
        ("plain_share_percent=nan", "expected a number from 0"),
        ("idle_s=", "expected a number from 0.1 or none"),
        ("idle_s=0", "expected a number from 0.1 or none"),
        ("connect_s=0", "expected a number from 0.1"),
        ("comment_every_s=0", "expected a number from 1 or none"),
        ("comment_every_s=0.99", "expected a number from 1 or none"),
        ("max_connections_per_server=0", "expected a whole number from 1"),
        ("prefix_affinity=1", "expected true or false"),
        ("when_no_pair=maybe", "expected fallback or refuse"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(setting: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting}: {expected}$"):
        policy_of([setting])


def test_the_help_tells_of_every_option_and_how_it_was_called(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capsys.readouterr().out
    assert told.startswith("usage: python -m routing ")
    options = re.split(r"^  (?=-)", told.split("options:")[1], flags=re.MULTILINE)[1:]
    assert [option for option in options if len(option.split("  ")) < 2 and "\n" not in option.strip()] == []


def test_a_router_without_servers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([])
    assert "name at least one server" in capsys.readouterr().err
