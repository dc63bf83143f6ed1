"""Token ids in, token ids out: split like text, with limits and a client's own hand-off one level deeper."""

import json
from typing import Any

import httpx
import orjson
import pytest

from routing.bodies import HANDOFF as FIELD
from routing.bodies import LARGE_BYTES, answers_of, parse, prefill_body, why_not_split, without_handoff
from routing.paths import TOKENS
from routing.sse import Scanner
from tests.routing.scripted import HANDOFF, Seen, Wire, answers, site
from tests.routing.test_simulated import pair
from tests.simulator.harness import SimulatedServer
from tests.waiting import LIMIT_S

IDS = list(range(200, 600))
NEVER_FROM_CLIENTS = ["kv_transfer_params", "ec_transfer_params"]


def asks(**settings: Any) -> dict[str, Any]:
    return {"model": "m", "token_ids": IDS, "sampling_params": {"temperature": 0, "max_tokens": 9, **settings}}


def chunk(ids: list[int], finish: str | None = None) -> dict[str, Any]:
    rest = {"routed_experts": None, "sampling_mask": None}
    choice = {"index": 0, "logprobs": None, "finish_reason": finish, "token_ids": ids, **rest}
    return {"request_id": "generate-tokens-1", "choices": [choice], "usage": None}


# Bodies


def test_prefill_is_asked_for_one_token_of_the_same_prompt() -> None:
    body = asks(min_tokens=3, stop=["a"], stop_token_ids=[5], logprobs=2, seed=4) | {"stream": True}
    made = json.loads(bytes(prefill_body(TOKENS, {**body, "stream_options": {"include_usage": True}})))  # type: ignore[arg-type]
    assert made.pop(FIELD)["do_remote_decode"] is True
    assert made == asks(max_tokens=1, logprobs=2, seed=4) | {"stream": False}


@pytest.mark.parametrize("name", NEVER_FROM_CLIENTS)
@pytest.mark.parametrize("value", [None, {"do_remote_prefill": True}, "text"])
def test_a_clients_own_handoff_is_taken_out_wherever_it_stands(name: str, value: object) -> None:
    body = asks(extra_args={name: value, "keep": 1}) | {name: value}
    assert without_handoff(body)
    assert body == asks(extra_args={"keep": 1})


@pytest.mark.parametrize("settings", [None, 5, [], {}, {"extra_args": None}, {"extra_args": ["kv_transfer_params"]}])
def test_settings_that_can_hold_none_stay_as_they_are(settings: object) -> None:
    body = {"token_ids": [1], "sampling_params": settings}
    assert not without_handoff(body)
    assert body == {"token_ids": [1], "sampling_params": settings}


@pytest.mark.parametrize(
    "body",
    [
        asks(n=2),
        asks(prompt_logprobs=0),
        asks(prompt_logprob_token_ids=[5]),
        asks(max_tokens=0),
        asks(max_tokens=5, min_tokens=6),
        {"token_ids": [1], "sampling_params": {"min_tokens": 17}},
        asks(stop=[5]),
        asks(stop_token_ids=["a"]),
        asks(logprobs=21),
        asks() | {"stream": True, "stream_options": {"include_usage": "maybe"}},
        asks() | {"features": {"mm_hashes": {"image": ["a"]}}},
        {"token_ids": [1]},
        {"token_ids": [1], "sampling_params": "text"},
        {"sampling_params": {}},
    ],
)
def test_what_no_split_serves_right(body: dict[str, Any]) -> None:
    assert why_not_split(TOKENS, body) is not None


@pytest.mark.parametrize(
    "body",
    [
        asks(),
        asks(max_tokens=None, min_tokens=100),
        asks(stop="a", stop_token_ids=[5], logprobs=0, n=1),
        {"token_ids": [1], "sampling_params": {}, "n": 3, "max_tokens": 0, "stop": 5},
    ],
)
def test_what_can_be_split(body: dict[str, Any]) -> None:
    assert why_not_split(TOKENS, body) is None


def test_answers_share_a_stream_where_its_settings_say_so() -> None:
    assert [answers_of(TOKENS, body) for body in (asks(), asks(n=3), {"n": 3})] == [1, 3, 1]


# Streams


@pytest.mark.parametrize("cut", [1, 7, 64, 10_000])
def test_a_stream_of_ids_is_read_and_passes_as_it_came(cut: int) -> None:
    chunks = [*(chunk([number]) for number in range(5)), chunk([5, 6], "length")]
    data = b"".join(b"data: %b\n\n" % orjson.dumps(told) for told in chunks) + b"data: [DONE]\n\n"
    scanner = Scanner("tokens", drop_usage=False)
    out = [scanner.feed(data[at : at + cut]) for at in range(0, len(data), cut)]
    assert b"".join(piece for piece, _ in out) == data
    assert sum(count for _, count in out) == 6
    assert (scanner.ended, scanner.is_complete) == ("length", True)
    assert scanner.prefix.endswith(b'"token_ids":[')  # So that the next token is known by its bytes.


# Served


def ids_in(answers: list[Any]) -> list[int]:
    """Of a whole answer, or of the events of a stream."""
    choices = [answer["choices"][0] for answer in answers if isinstance(answer, dict) and answer["choices"]]
    return [number for choice in choices for number in choice["token_ids"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_are_split_and_what_comes_is_what_one_server_gives(stream: bool) -> None:
    flags = ["--enable-scale-out"]
    async with pair(flags=flags) as both, SimulatedServer(name="m", args=flags) as one, httpx.AsyncClient() as client:
        alone = await client.post(f"{one.url}{TOKENS}", json=asks(), timeout=LIMIT_S)
        answer = await both.place.post(asks() | {"stream": stream}, TOKENS)
        assert (answer.status, answer.headers["x-switchyard-route"]) == (200, "split")
        assert both.external_tokens() >= len(IDS)
        record = await both.place.record()
    assert ids_in(answer.events if stream else [answer.json]) == ids_in([alone.json()])
    assert (record.outcome, record.completion_tokens, record.prompt_tokens) == ("ok", 9, len(IDS))
    assert (record.first_token_ms is not None) is stream


async def test_no_server_sees_a_clients_own_handoff() -> None:
    async def generates(seen: Seen, wire: Wire) -> None:
        await wire.json({"choices": [], "kv_transfer_params": HANDOFF})

    async with site({"P1": generates, "D1": generates}) as place:
        body = asks(extra_args={"kv_transfer_params": {"do_remote_prefill": True}})
        await place.post({**body, "kv_transfer_params": {"do_remote_prefill": True}}, TOKENS)
        prefill, decode = place["P1"].seen[0].body, place["D1"].seen[0].body
    assert decode[FIELD] == HANDOFF
    assert prefill["sampling_params"]["extra_args"] == decode["sampling_params"]["extra_args"] == {}


async def test_a_handoff_in_a_large_body_is_taken_out_too() -> None:
    async with site({"N1": answers(200, {"choices": []})}) as place:
        body = asks(extra_args={"kv_transfer_params": {}}) | {"token_ids": [7] * LARGE_BYTES}
        assert (await place.post(body, TOKENS)).status == 200
        seen = parse(place["N1"].seen[0].raw)
    assert seen == asks(extra_args={}) | {"token_ids": [7] * LARGE_BYTES}
