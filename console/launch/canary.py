"""Tries a server, and a pair of servers, with requests of our own. Blocking, for the queue `checks`."""

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from console.launch import readiness
from console.launch.contracts import EngineSample
from console.launch.metrics import engine_sample

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 60.0
"""A first completion on a busy or slow engine; a decode server that cannot reach its peer answers after 5 to 10 s."""
SETTLE_LIMIT_S = 5.0
SETTLE_POLL_S = 0.1
BLOCKS = 2
"""A canary has as many words as so many KV blocks have tokens. A word is two to five tokens, so whole blocks travel."""
TIMES = 3
DEFAULT_BLOCK_TOKENS = 16
_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{(?:[^}]*,)?block_size="(\d+)"', re.MULTILINE)
HTTP_ERROR_SHOWN = 160


class Failed(Exception):
    """The server did not do what a sound one does. The message is a sentence for its card."""


@dataclass(frozen=True)
class Target:
    """Where a server is reached and how its model is called."""

    name: str
    url: str
    model: str
    api_key: str = ""


@dataclass(frozen=True)
class ServerResult:
    max_model_len: int | None
    """The context length that its model card names."""
    forces_usage: bool
    """A stream of it has a usage chunk that nobody asked for."""


@dataclass(frozen=True)
class PairResult:
    tokens: int
    transfer: readiness.Transfer


class Engine:
    """One server over HTTP. Every error becomes `Failed`."""

    def __init__(self, target: Target) -> None:
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self.target = target
        # trust_env off: a proxy of the console's own environment has no business between it and its servers.
        self._client = httpx.Client(base_url=target.url, headers=headers, timeout=timeout, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str) -> httpx.Response:
        return self._answer("GET", path)

    def complete(self, prompt: str, kv_transfer_params: Mapping[str, object] | None = None, tokens: int = 1) -> Any:
        """So many greedy tokens. The body of the answer."""
        body: dict[str, Any] = {"model": self.target.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        if kv_transfer_params is not None:
            body["kv_transfer_params"] = kv_transfer_params
        return self._json(self._answer("POST", "/v1/completions", body), "/v1/completions")

    def stream(self, prompt: str) -> str:
        """The events of one streamed token."""
        body = {"model": self.target.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
        return self._answer("POST", "/v1/completions", body).text

    def models(self) -> Any:
        return self._json(self.get("/v1/models"), "/v1/models")

    def metrics(self) -> str:
        return self.get("/metrics").text

    def sample(self) -> EngineSample:
        try:
            return engine_sample(self.metrics(), time.time())
        except ValueError as error:
            raise Failed(f"/metrics of {self.target.name} is not that of a vLLM engine.") from error

    def _answer(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise Failed(f"{self.target.name} does not answer {path} ({error or type(error).__name__}).") from error
        if response.status_code != 200:
            said = response.text[:HTTP_ERROR_SHOWN]
            raise Failed(f"{self.target.name} answers {path} with {response.status_code}: {said}")
        return response

    def _json(self, response: httpx.Response, path: str) -> Any:
        try:
            return response.json()
        except json.JSONDecodeError as error:
            raise Failed(f"{self.target.name} answers {path} with something that is not JSON.") from error


def try_server(target: Target) -> ServerResult:
    """Health, its model card, one completion, and one that is streamed. Raises Failed."""
    with Engine(target) as engine:
        engine.get("/health")
        facts = readiness.model_facts(engine.models(), target.model)
        problem = facts.problem or readiness.completion_problem(engine.complete("Hello"))
        if problem is not None:
            raise Failed(problem)
        return ServerResult(facts.max_model_len, readiness.has_usage(engine.stream("Hello")))


def try_pair(prefill: Target, decode: Target, max_model_len: int | None = None) -> PairResult:
    """Sends a prompt through both and reads from the decode server's counters whether its KV came. Raises Failed.

    On a decode server that computes other prompts meanwhile the counters are not clear; then it is sent again, and
    after the last time believed, since the KV of some request did come and no transfer failed.
    """
    with Engine(prefill) as first, Engine(decode) as second:
        block_tokens = _block_tokens(first.metrics())
        for left in reversed(range(TIMES)):
            result, is_clear = _hand_over(first, second, make_prompt(block_tokens, max_model_len))
            if is_clear or not left:
                break
    return result


def _hand_over(prefill: Engine, decode: Engine, prompt: str) -> tuple[PairResult, bool]:
    before = decode.sample()
    handed_over = prefill.complete(prompt, readiness.DECODE_LATER)
    if problem := readiness.handoff_problem(handed_over):
        raise Failed(problem)
    answer = decode.complete(prompt, handed_over["kv_transfer_params"])
    tokens = readiness.prompt_tokens(handed_over)
    if problem := readiness.completion_problem(answer):
        raise Failed(problem)
    if not tokens:
        raise Failed(f"{prefill.target.name} does not say how many tokens the prompt had.")
    after = _settled(decode, before, tokens)
    if problem := readiness.transfer_problem(before, after, tokens):
        raise Failed(problem)
    return PairResult(tokens, readiness.transfer_between(before, after)), readiness.is_clear(before, after, tokens)


def answer_split(prefill: Target, decode: Target, prompt: str, tokens: int) -> str:
    """The text that the pair writes. Raises Failed."""
    with Engine(prefill) as first, Engine(decode) as second:
        handed_over = first.complete(prompt, readiness.DECODE_LATER)
        if problem := readiness.handoff_problem(handed_over):
            raise Failed(problem)
        return readiness.text_of(second.complete(prompt, handed_over["kv_transfer_params"], tokens))


def answer_alone(target: Target, prompt: str, tokens: int) -> str:
    """The text that one server writes. Raises Failed."""
    with Engine(target) as engine:
        return readiness.text_of(engine.complete(prompt, tokens=tokens))


def make_prompt(block_tokens: int, max_model_len: int | None = None) -> str:
    """Never sent before, so no cache holds it. At least one token a word, and well inside the context."""
    words = BLOCKS * block_tokens
    if max_model_len is not None:
        words = min(words, max(1, max_model_len // 8))
    return "Repeat: " + " ".join(secrets.token_hex(2) for _ in range(words))


def _block_tokens(metrics: str) -> int:
    found = _BLOCK_SIZE.search(metrics)
    return int(found[1]) if found else DEFAULT_BLOCK_TOKENS


def _settled(decode: Engine, before: EngineSample, tokens: int) -> EngineSample:
    """The counters are written a little after the answer: looks until they say that the KV came, briefly."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while True:
        after = decode.sample()
        complete = readiness.kv_came(before, after, tokens) and after["transfer_count"] > before["transfer_count"]
        if complete or time.monotonic() >= deadline:
            return after
        time.sleep(SETTLE_POLL_S)
