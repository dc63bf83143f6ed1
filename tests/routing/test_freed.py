"""What a request held is freed as soon as it has failed: a cycle would keep its body until the collector runs."""

import gc

import pytest

from routing.attempt import Attempt
from routing.errors import LegError, Refusal
from routing.exchange import Exchange, Tries
from routing.table import Policy, Timeouts
from tests.routing.scripted import (
    Json,
    Script,
    Seen,
    Wire,
    answers,
    chat_chunk,
    hangs,
    head,
    prefills,
    resets,
    site,
    until,
)

REFUSED = answers(400, {"error": {"message": "no", "type": "BadRequestError", "code": 400}})
TOOL: Json = {"type": "function", "function": {"name": "f"}}
NO_JSON = answers(200, b"no JSON")
KEPT = (LegError, Refusal, Attempt, Exchange, Tries)


async def refuses_in_stream(seen: Seen, wire: Wire) -> None:
    await wire.start_stream()
    await wire.event({"error": {"message": "no", "type": "BadRequestError", "code": 400}})
    await wire.end_stream()


async def breaks_in_stream(seen: Seen, wire: Wire) -> None:
    await wire.start_stream()
    await wire.event(chat_chunk({"content": "x"}))
    wire.reset()


def kept() -> dict[int, object]:
    """What is there of them, by its id. Lazy objects of other tests are not asked what they are: that makes them."""
    return {id(found): found for found in gc.get_objects() if issubclass(type(found), KEPT)}


async def breaks_in_answer(seen: Seen, wire: Wire) -> None:
    await wire.send(head(200, {"content-length": "100"}) + b"{")
    wire.reset()


@pytest.mark.parametrize(
    ("engines", "asked"),
    [
        pytest.param({}, {}, id="nothing serves it"),
        pytest.param({"N1": REFUSED}, {"model": "unknown"}, id="a name that nobody lists"),
        pytest.param({"N1": REFUSED}, {"model": 1}, id="no name"),
        pytest.param({"N1": REFUSED}, {}, id="refused"),
        pytest.param({"P1": REFUSED, "D1": REFUSED}, {}, id="refused by prefill"),
        pytest.param({"P1": REFUSED, "D1": REFUSED}, {"stream": True}, id="refused by both"),
        pytest.param({"P1": REFUSED, "D1": refuses_in_stream}, {"stream": True}, id="refused by both, in a stream"),
        pytest.param({"P1": REFUSED, "D1": resets}, {"stream": True}, id="refused by prefill, and decode breaks"),
        pytest.param({"P1": REFUSED, "D1": REFUSED}, {"tools": [TOOL], "tool_choice": "required"}, id="a forced tool"),
        pytest.param({"P1": prefills, "D1": refuses_in_stream}, {"stream": True}, id="refused in a stream"),
        pytest.param({"P1": prefills, "D1": breaks_in_stream}, {"stream": True}, id="a stream breaks"),
        pytest.param({"P1": NO_JSON, "D1": resets}, {}, id="no JSON"),
        pytest.param({"N1": breaks_in_answer}, {}, id="an answer breaks"),
        pytest.param({"N1": resets, "N2": resets}, {}, id="both break"),
        pytest.param({"N1": answers(500, {}), "N2": answers(500, {})}, {}, id="both fail"),
        pytest.param({"N1": hangs, "N2": hangs}, {}, id="both hang"),
        pytest.param({"P1": hangs, "D1": hangs}, {}, id="prefill hangs"),
    ],
)
async def test_a_request_that_failed_is_freed_without_the_collector(engines: dict[str, Script], asked: Json) -> None:
    async with site(engines, Policy(timeouts=Timeouts(first_byte_s=0.2))) as place:
        gc.collect()
        gc.disable()
        before = kept()  # Of tests before this one: held here, so that none of these ids is given out again.
        try:
            await place.chat(**asked)
            await until(lambda: kept().keys() <= before.keys())
        finally:
            gc.enable()
