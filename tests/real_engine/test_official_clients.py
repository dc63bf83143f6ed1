"""The benchmark clients that engines are measured with work through the router unmodified.

They need the real engine's environment; behind the router are a simulated prefill and a simulated decode server.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from console.demo.plans import real_engine_home
from tests.own import held_port
from tests.routing.crew import metrics_of_all
from tests.routing.scripted import Client, ask
from tests.simulator.harness import NAME, SimulatedServer
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
ENGINE = real_engine_home()
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
SMALL = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}
REQUESTS, TOKENS = 8, 16
CLIENT_LIMIT_S = 600.0
both_formats = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])

pytestmark = pytest.mark.real_engine


@pytest.fixture
async def decode() -> AsyncIterator[SimulatedServer]:
    async with SimulatedServer("decode") as server:
        yield server


@pytest.fixture
async def port(decode: SimulatedServer) -> AsyncIterator[int]:
    """Of a router, alone, in front of a prefill and a decode server."""
    async with SimulatedServer("prefill") as prefill, router(prefill.url, decode.url) as port:
        yield port


@both_formats
async def test_the_engines_benchmark_client_succeeds_with_every_request(path: str, port: int, tmp_path: Path) -> None:
    backend = "openai-chat" if "chat" in path else "openai"
    words = f"bench serve --backend {backend} --base-url http://127.0.0.1:{port} --endpoint {path} --model {NAME}"
    words += f" --tokenizer {ENGINE}/tiny-model --dataset-name random --random-input-len 64"
    words += f" --random-output-len {TOKENS} --num-prompts {REQUESTS} --max-concurrency 2 --ignore-eos --save-result"
    words += f" --result-dir {tmp_path} --result-filename result.json"
    await run(ENGINE / "bin" / "vllm", words.split(), tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result.get("failed", 0)) == (REQUESTS, 0)
    assert result["total_output_tokens"] == REQUESTS * TOKENS
    assert await split(port) == {"ok": REQUESTS}


@both_formats
async def test_guidellm_sees_every_token_of_every_request_streamed(
    path: str, port: int, decode: SimulatedServer, tmp_path: Path
) -> None:
    report = await guidellm(path, port, tmp_path)
    assert report["scheduler_metrics"]["requests_made"] == {
        "successful": REQUESTS,
        "errored": 0,
        "incomplete": 0,
        "total": REQUESTS,
    }
    for request in report["requests"]["successful"]:
        assert request["output_tokens"] == request["info"]["timings"]["token_iterations"] == TOKENS
        assert request["prompt_tokens"] > 0
        assert 0 < request["time_to_first_token_ms"] < request["request_latency"] * 1e3
        assert request["inter_token_latency_ms"] > 0
    assert await split(port) == {"ok": REQUESTS}
    assert decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0


async def guidellm(path: str, port: int, folder: Path) -> dict[str, Any]:
    """Its report of one run with prompts that it makes up, counted with the tiny model's tokenizer."""
    options = {
        "--backend": f"kind=openai_http,target=http://127.0.0.1:{port},model={NAME},request_format={path}",
        "--profile": "kind=concurrent,streams=2",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--tokenizer": f"kind=huggingface_auto,model={ENGINE}/tiny-model",
        "--data": f"kind=synthetic_text,prompt_tokens=64,output_tokens={TOKENS}",
        "--data-loader": f"kind=pytorch,prefetch_factor={REQUESTS}",
        "--output": f"kind=json,path={folder}/report.json",
    }
    words = [word for option in options.items() for word in option]
    await run(ENGINE / "guidellm" / "bin" / "guidellm", ["run", "--disable-console", *words], folder)
    [report] = json.loads((folder / "report.json").read_text())["benchmarks"]
    found: dict[str, Any] = report
    return found


@asynccontextmanager
async def router(prefill: str, decode: str) -> AsyncIterator[int]:
    with held_port() as port:
        words = ["-m", "routing", "--port", str(port), "--prefill", prefill, "--decode", decode]
        process = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT)
        try:
            await model_is_listed(port)
            yield port
        finally:
            process.terminate()
            await process.wait()


async def model_is_listed(port: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                if (await ask(port, "GET", "/v1/models")).json["data"]:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)


async def run(program: Path, words: Sequence[str], home: Path) -> None:
    """With nothing that an earlier run may have left, and no way to a model hub."""
    process = await asyncio.create_subprocess_exec(
        program,
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **OFFLINE, **SMALL, "HF_HOME": str(home / "hub")},
    )
    try:
        async with asyncio.timeout(CLIENT_LIMIT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()[-2000:]


async def split(port: int) -> dict[str, int]:
    """How many requests the router finished by the split route, by outcome, once it has finished all: a client that
    leaves at the end marker may be gone before the router knows."""
    async with asyncio.timeout(LIMIT_S):
        while sum((found := await finished_by_split(port)).values()) < REQUESTS:
            pass
    return found


async def finished_by_split(port: int) -> dict[str, int]:
    async with Client(port) as client:
        families = text_string_to_metric_families(await metrics_of_all(client))
    return {
        sample.labels["outcome"]: int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "switchyard_router_requests_total" and sample.labels["route"] == "split"
    }
