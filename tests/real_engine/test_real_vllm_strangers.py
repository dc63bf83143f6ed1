"""Real servers that someone else started, adopted by their addresses and routed as a pair."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from console.demo.plans import CPU_ENGINE_ARGS, CPU_ENGINE_ENV, real_engine_home
from tests.comparing import differences
from tests.mixed_load import MixedLoad
from tests.own import free_port, is_free
from tests.real_engine.cases import CHAT, chat
from tests.real_engine.picture_cases import ONE, asks, picture, text
from tests.real_engine.yard import SMALL, START_LIMIT_S, Yard, external_tokens
from tests.waiting import LIMIT_S, wait_for

pytestmark = pytest.mark.real_engine

NAME, KEY = "theirs", "a-key-of-their-own"
MODEL = real_engine_home() / "tiny-model"


@dataclass(frozen=True)
class Stranger:
    url: str
    process: "subprocess.Popen[bytes]"

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=LIMIT_S).status_code == 200
        except httpx.HTTPError:
            assert self.process.poll() is None
            return False


@contextmanager
def started(kv_role: str, log: Path) -> Iterator[Stranger]:
    """As a person starts it in a terminal, ended with its group."""
    port, side_channel = free_port(), free_port()
    words: list[str | Path] = [
        real_engine_home() / "bin" / "vllm",
        "serve",
        MODEL,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    words += ["--served-model-name", NAME, *CPU_ENGINE_ARGS, "--enable-force-include-usage"]
    words += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": kv_role})]
    own = {"VLLM_API_KEY": KEY, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            env={**os.environ, **CPU_ENGINE_ENV, "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", **own},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Stranger(f"http://127.0.0.1:{port}", process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stranger, Stranger]]:
    """A prefill and a decode server that answer."""
    logs = tmp_path_factory.mktemp("strangers")
    with ExitStack() as stack:
        prefill = stack.enter_context(started("kv_producer", logs / "prefill.log"))
        decode = stack.enter_context(started("kv_consumer", logs / "decode.log"))
        wait_for(lambda: prefill.answers() and decode.answers(), "both answer", START_LIMIT_S)
        yield prefill, decode


@pytest.fixture(scope="module")
def adopted(demo: Yard, strangers: tuple[Stranger, Stranger]) -> tuple[str, str]:
    """Their names, once they take traffic."""
    deployment = {"name": NAME, "model": str(MODEL), "engine": "vllm", "require_key": False}
    assert demo.post("/api/deployments", deployment).status_code == 201
    prefill, decode = strangers
    names = adopt(demo, prefill.url, "prefill"), adopt(demo, decode.url, "decode")
    for name in names:
        demo.wait_for_state(name, "ready")
    return names


def adopt(demo: Yard, url: str, role: str) -> str:
    body = {"deployment": NAME, "url": url, "role": role, "api_key": KEY}
    made = demo.post("/api/servers/adopt", body)
    assert made.status_code == 201, made.text
    return str(made.json()["name"])


def verified_pair(demo: Yard) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        pairs: list[dict[str, Any]] = demo.get("/api/pairs", deployment=NAME, state="verified")["items"]
        return pairs[0] if pairs else None

    return wait_for(find, "the pair of strangers is verified", START_LIMIT_S)


def test_the_canary_verifies_a_pair_that_someone_else_started(demo: Yard, adopted: tuple[str, str]) -> None:
    pair = verified_pair(demo)
    assert (pair["prefill"]["name"], pair["decode"]["name"]) == adopted
    assert pair["canary_tokens"] > 16
    assert pair["transfer_bytes"] > 0


def test_requests_are_split_through_it(
    demo: Yard, adopted: tuple[str, str], strangers: tuple[Stranger, Stranger]
) -> None:
    verified_pair(demo)
    before = external_tokens(strangers[1].url)
    with MixedLoad(demo.url, NAME, sizes=SMALL, clients=1).running() as load:
        load.wait_for_answers(
            lambda answer: (answer.route, answer.prefill, answer.decode) == ("split", *adopted), "split through it"
        )
    assert load.problems == []
    assert external_tokens(strangers[1].url) > before


@pytest.mark.parametrize("more", [{}, {"n": 2, "seed": 7, "temperature": 1}])
def test_a_stream_tells_its_usage_to_everybody_as_their_servers_do(
    demo: Yard, adopted: tuple[str, str], strangers: tuple[Stranger, Stranger], more: dict[str, Any]
) -> None:
    verified_pair(demo)
    body = {"model": NAME, **chat(stream=True, **more)}
    direct, routed = asked_both_ways(demo, strangers, body)
    assert differences(direct, routed) == []
    assert '"choices":[],"usage":' in routed.text


def asked_both_ways(
    demo: Yard, strangers: tuple[Stranger, Stranger], body: dict[str, Any]
) -> tuple[httpx.Response, httpx.Response]:
    """Their decode server, and the router."""
    asked = [(strangers[1].url, {"authorization": f"Bearer {KEY}"}), (demo.url, {})]
    direct, routed = (httpx.post(f"{url}{CHAT}", json=body, headers=headers, timeout=LIMIT_S) for url, headers in asked)
    return direct, routed


def test_a_picture_for_a_model_of_text_is_refused_as_the_engine_does(
    demo: Yard, adopted: tuple[str, str], strangers: tuple[Stranger, Stranger]
) -> None:
    body = {"model": NAME, **chat(asks(picture(ONE), text("What is it?")))}
    direct, routed = asked_both_ways(demo, strangers, body)
    assert differences(direct, routed) == []
    assert routed.status_code == 400


@pytest.mark.parametrize(("deed", "body"), [("stop", {}), ("start", {}), ("move", {"role": "plain"})])
def test_what_is_not_ours_is_neither_stopped_nor_started_nor_moved(
    demo: Yard, adopted: tuple[str, str], strangers: tuple[Stranger, Stranger], deed: str, body: dict[str, str]
) -> None:
    refused = demo.post(f"/api/servers/{demo.server(adopted[0])['id']}/{deed}", body)
    assert refused.status_code == 409
    assert "adopted" in refused.json()["error"]["message"]
    assert strangers[0].answers()


def test_letting_them_go_leaves_them_running(
    demo: Yard, adopted: tuple[str, str], strangers: tuple[Stranger, Stranger]
) -> None:
    for name in adopted:
        let_go = demo.post(f"/api/servers/{demo.server(name)['id']}/let-go", {})
        assert let_go.status_code == 202, let_go.text
    wait_for(lambda: not set(adopted) & set(demo.servers()), what="both are let go")
    assert all(stranger.answers() for stranger in strangers)
    assert not is_free(httpx.URL(strangers[0].url).port or 0)
