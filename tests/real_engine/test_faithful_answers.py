"""A split deployment answers as one server does: the same requests to real servers, directly and through the router.

The model's weights are random, yet its greedy text is firm: the likeliest token leads by far more than what servers
differ in (float32, a few millionths), and answers are short. A case that fails is a difference and not chance.
"""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.comparing import differences
from tests.real_engine.cases import (
    CASES,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    ONE_SERVER,
    ONE_SERVER_AFTER_PREFILL,
    REFUSED,
    RESPONSES,
    SPLIT,
    Case,
    chat,
    completion,
    response,
)
from tests.real_engine.picture_cases import PICTURE_CASES, asks, picture, text
from tests.real_engine.pictures import data_url, png
from tests.real_engine.yard import Yard, external_tokens

pytestmark = pytest.mark.real_engine

ALL_CASES = [*CASES, *PICTURE_CASES]
ANSWER_LIMIT_S = 600.0
PICTURE_TOKENS = 144
ROUTES = {SPLIT: "split", ONE_SERVER: "direct", ONE_SERVER_AFTER_PREFILL: "fallback"}


class Side:
    """One of the two ways. Its requests are asked one after the other, in the order in which they were put to it, so
    that what a server has cached is the same at each."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        # A connection for each: an engine closes one after some of its errors without saying so.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=url, headers=headers, timeout=ANSWER_LIMIT_S, limits=limits)
        self._turn = ThreadPoolExecutor(1)

    def put(self, case: Case, headers: Mapping[str, str] | None = None) -> "Future[httpx.Response]":
        return self._turn.submit(self._client.post, case.path, content=case.raw, headers=headers)

    def close(self) -> None:
        self._turn.shutdown(cancel_futures=True)
        self._client.close()


@pytest.fixture(scope="module")
def sides(demo: Yard, third: str) -> Iterator[tuple[Side, Side]]:
    """A server of its own, and the router in front of the pair. They share no server."""
    direct = Side(demo.server(third)["url"], demo.secret_key())
    routed = Side(demo.url, demo.demo["inference_key"])
    yield direct, routed
    direct.close()
    routed.close()


Answers = dict[str, tuple["Future[httpx.Response]", "Future[httpx.Response]"]]


@pytest.fixture(scope="module")
def answers(sides: tuple[Side, Side], request: pytest.FixtureRequest) -> Answers:
    """By the name of the case, of all that are to run: neither side waits for the other."""
    direct, routed = sides
    return {case.name: (direct.put(case), routed.put(case)) for case in ALL_CASES if is_chosen(case, request.session)}


def is_chosen(case: Case, session: pytest.Session) -> bool:
    return any(item.name.endswith(f"[{case.name}]") for item in session.items)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_the_answer_is_the_same_directly_and_split(answers: Answers, case: Case) -> None:
    direct, routed = (answer.result() for answer in answers[case.name])
    found = differences(direct, routed, own_words=case.own_words)
    assert not found, "\n".join(found)
    assert (direct.status_code >= 400) is (case.goes == REFUSED)
    if case.goes != REFUSED:
        assert routed.headers["x-switchyard-route"] == ROUTES[case.goes]


IDENTIFIED = {CHAT: chat(), COMPLETIONS: completion(), RESPONSES: response(), MESSAGES: chat()}
ID = re.compile(r'"id": ?"([^"]*)"')


@pytest.mark.parametrize("headers", [{}, {"x-request-id": "in-the-header"}], ids=["", "header"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_an_answer_has_the_id_that_its_request_brought(
    sides: tuple[Side, Side], path: str, stream: bool, headers: dict[str, str]
) -> None:
    case = Case("identified", path, {**IDENTIFIED[path], "stream": stream, "request_id": "in-the-body"})
    direct, routed = (side.put(case, headers).result() for side in sides)
    assert ID.findall(direct.text)[0] == ID.findall(routed.text)[0]
    assert routed.headers["x-request-id"] == headers.get("x-request-id", "in-the-body")


def test_a_message_has_the_id_of_its_requests_header(sides: tuple[Side, Side]) -> None:
    case = Case("identified", MESSAGES, IDENTIFIED[MESSAGES])
    direct, routed = (side.put(case, {"x-request-id": "in-the-header"}).result().json()["id"] for side in sides)
    assert direct == routed == "chatcmpl-in-the-header"


@pytest.mark.parametrize("form", ["TEXT", "JSON", "other"])
def test_whoever_asks_for_the_load_is_told_of_it(sides: tuple[Side, Side], form: str) -> None:
    case = Case("chat", CHAT, chat(max_tokens=2))
    answers = [side.put(case, {"endpoint-load-metrics-format": form}).result() for side in sides]
    told = [re.sub(r"\d+\.\d+(e-?\d+)?", "0", answer.headers.get("endpoint-load-metrics", "")) for answer in answers]
    assert told[0] == told[1]
    assert told[0].startswith(form) or not told[0]


def test_what_is_said_of_a_picture_depends_on_it_and_its_cache_goes_over(demo: Yard, sides: tuple[Side, Side]) -> None:
    decode, said = demo.in_role("decode")["url"], []
    for seed in (71, 72):
        before = external_tokens(decode)
        question = chat(asks(picture(data_url(png(seed))), text("What is it?")))
        answer = sides[1].put(Case("a new picture", CHAT, question)).result().json()
        said.append(answer["choices"][0]["message"]["content"].split())
        assert external_tokens(decode) - before >= PICTURE_TOKENS
    assert said[0] != said[1]
    assert all(len(set(words)) > 6 for words in said)
