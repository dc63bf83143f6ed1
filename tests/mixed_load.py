"""A steady mix of requests for tests: chats and completions, streamed and not, short and long, every answer judged.

Clients send one request after the other with a short rest between; together they cover every combination in turn.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.waiting import wait_until

TIMEOUT_S = 600.0
"""For an answer, and for those that a test waits for: a real engine on slow cores takes its time."""
Sizes = tuple[tuple[int, int], ...]
SMALL_AND_LARGE: Sizes = ((30, 12), (30, 120), (1500, 12), (1500, 60))
"""Words of the prompt and tokens of the answer."""


@dataclass(frozen=True)
class Answer:
    """`problem`: why it is not what was asked for; empty when it is whole. `sent_at`: monotonic time."""

    sent_at: float
    problem: str
    route: str = ""
    prefill: str = ""
    decode: str = ""

    def came_through(self, name: str, role: str) -> bool:
        """That server had the part of `role` in it."""
        by_role = {"prefill": self.prefill, "decode": self.decode if self.route == "split" else ""}
        return by_role.get(role, self.decode if self.route != "split" else "") == name


@dataclass
class MixedLoad:
    url: str
    model: str
    key: str = ""
    sizes: Sizes = SMALL_AND_LARGE
    clients: int = 3
    rest_s: float = 0.05
    answers: list[Answer] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator["MixedLoad"]:
        """Until the block ends, with every request that began brought to its end."""
        bodies = itertools.cycle(list(self._bodies()))
        threads = [threading.Thread(target=self._send_on, args=(bodies,)) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()

    @property
    def problems(self) -> list[str]:
        return [answer.problem for answer in self.answers if answer.problem]

    def wait_for_answers_through(self, name: str, role: str) -> None:
        """Two that are sent from now on, whole."""
        self.wait_for_answers(lambda answer: answer.came_through(name, role), f"through {name} as {role}")

    def wait_for_answers(self, fits: Callable[[Answer], bool], what: str) -> None:
        """Two that are sent from now on, whole."""
        now = time.monotonic()

        def came() -> bool:
            assert not self.problems, self.problems
            later = [answer for answer in self.answers if answer.sent_at >= now]
            return sum(map(fits, later)) >= 2

        wait_until(came, f"answers {what}", TIMEOUT_S)

    def _bodies(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for (words, tokens), streamed, chat in itertools.product(self.sizes, (True, False), (True, False)):
            body = {"model": self.model, "max_tokens": tokens, "temperature": 0, "stream": streamed}
            if streamed:
                body["stream_options"] = {"include_usage": True}
            prompt = "check the bearing of the pump in the second tank " * (words // 9)
            if chat:
                yield "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]}
            else:
                yield "/v1/completions", {**body, "prompt": prompt}

    def _send_on(self, bodies: Iterator[tuple[str, dict[str, Any]]]) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        with httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:
            while not self._ending.is_set():
                self.answers.append(_ask(client, *next(bodies)))
                self._ending.wait(self.rest_s)


def _ask(client: httpx.Client, path: str, body: dict[str, Any]) -> Answer:
    sent_at = time.monotonic()
    what = f"{path}, {'streamed' if body['stream'] else 'not streamed'}, {body['max_tokens']} tokens"
    try:
        answer = client.post(path, json=body)
    except httpx.HTTPError as error:
        return Answer(sent_at, f"{what}: {error!r}")
    problem = _problem(answer, body)
    return Answer(
        sent_at,
        f"{what}: {problem}" if problem else "",
        *(answer.headers.get(f"x-switchyard-{name}", "") for name in ("route", "prefill", "decode")),
    )


def _problem(answer: httpx.Response, body: dict[str, Any]) -> str:
    """Empty: status 200, its end is named, and it has all the tokens that were asked for."""
    if answer.status_code != 200:
        return f"status {answer.status_code}: {answer.text[:300]}"
    if not body["stream"]:
        return _problem_of([answer.json()], body)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return f"the stream was cut after {len(events)} events"
    return _problem_of([json.loads(event) for event in events[:-1]], body)


def _problem_of(parts: list[dict[str, Any]], body: dict[str, Any]) -> str:
    ends = [choice["finish_reason"] for part in parts for choice in part.get("choices", []) if choice["finish_reason"]]
    tokens = [part["usage"]["completion_tokens"] for part in parts if part.get("usage")]
    if ends != ["length"] or tokens[-1:] != [body["max_tokens"]]:
        return f"it ended by {ends} with {tokens[-1:]} tokens: {json.dumps(parts[-1])[:300]}"
    return ""
