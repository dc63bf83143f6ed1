"""The engine's own benchmark client works through the router unmodified."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from console.embedded import free_port
from tests.routing.scripted import ask
from tests.simulator.harness import NAME, SimulatedServer

ROOT = Path(__file__).parents[2]
ENGINE = Path(os.environ.get("REAL_ENGINE_HOME", Path.home() / ".cache" / "real-engine"))

pytestmark = pytest.mark.real_engine


@pytest.mark.parametrize(("backend", "path"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")])
async def test_the_engines_benchmark_client_succeeds_with_every_request(
    backend: str, path: str, tmp_path: Path
) -> None:
    async with SimulatedServer("prefill") as prefill, SimulatedServer("decode") as decode:
        port = free_port()
        router = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "routing",
            "--port",
            str(port),
            "--prefill",
            prefill.url,
            "--decode",
            decode.url,
            cwd=ROOT,
        )
        try:
            await model_is_listed(port)
            await benchmark(port, backend, path, tmp_path)
        finally:
            router.terminate()
            await router.wait()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result.get("failed", 0)) == (8, 0)
    assert result["total_output_tokens"] == 8 * 16


async def model_is_listed(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                if (await ask(port, "GET", "/v1/models")).json["data"]:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.1)


async def benchmark(port: int, backend: str, path: str, folder: Path) -> None:
    words = f"bench serve --backend {backend} --base-url http://127.0.0.1:{port} --endpoint {path} --model {NAME}"
    words += f" --tokenizer {ENGINE}/tiny-model --dataset-name random --random-input-len 64 --random-output-len 16"
    words += f" --num-prompts 8 --max-concurrency 2 --ignore-eos --save-result --result-dir {folder}"
    words += " --result-filename result.json"
    process = await asyncio.create_subprocess_exec(
        ENGINE / "bin" / "vllm",
        *words.split(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
    )
    async with asyncio.timeout(180):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-2000:]
