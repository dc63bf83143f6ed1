"""The decode server's context is checked before a prefill server works."""

from dataclasses import replace
from typing import Any

import pytest

from routing.backend import Backend
from routing.limits import fit
from routing.table import Server
from tests.routing.scripted import Seen, Site, Wire, chat_body, prefills, site, streams

TOO_LONG = {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": 400}}


def made(role: Any, limit: int | None) -> Backend:
    return Backend(Server(role, role, role, "http://x:1", max_model_len=limit), 10)


@pytest.mark.parametrize(
    ("body", "prompt_bytes", "prefill_limit", "expected"),
    [
        ({"prompt": "x", "max_tokens": 5000}, 1, 8192, "too long"),
        ({"prompt": [1] * 4000, "max_tokens": 97}, 9, 8192, "too long"),
        ({"prompt": [1] * 4000, "max_tokens": 96}, 9, 8192, "fits"),
        ({"messages": []}, 100_000, 8192, "unknown"),
        ({"messages": []}, 100_000, 4096, "fits"),
        ({"messages": [], "max_tokens": 4000}, 200, 4096, "unknown"),
        ({"messages": [], "max_tokens": 3000}, 200, 4096, "fits"),
    ],
)
def test_what_fits_is_known_from_the_request_or_must_be_counted(
    body: dict[str, Any], prompt_bytes: int, prefill_limit: int, expected: str
) -> None:
    assert fit(body, prompt_bytes, made("prefill", prefill_limit), made("decode", 4096)) == expected


def test_a_server_of_unknown_length_is_not_checked() -> None:
    assert fit({"max_tokens": 10**9}, 10**9, made("prefill", None), made("decode", None)) == "fits"


def prefill(counted: int) -> Any:
    async def script(seen: Seen, wire: Wire) -> None:
        if seen.path == "/tokenize":
            assert seen.body["messages"]
            await wire.json({"count": counted, "max_model_len": 8192})
        else:
            await prefills(seen, wire)

    return script


async def refuses(seen: Seen, wire: Wire) -> None:
    await wire.json(TOO_LONG, 400)


def with_limits(place: Site) -> None:
    servers = [place.server("P1", max_model_len=8192), replace(place.server("D1"), max_model_len=4096)]
    place.publish(servers=servers)


async def test_a_prompt_too_long_for_decode_is_refused_in_its_words_without_prefill() -> None:
    async with site({"P1": prefill(5000), "D1": refuses}) as place:
        with_limits(place)
        answer = await place.post(chat_body(extra="x" * 20_000))
        assert [seen.path for seen in place["P1"].seen] == ["/tokenize"]
        assert len(place["D1"].seen) == 1
    assert (answer.status, answer.json) == (400, TOO_LONG)
    assert answer.headers["x-switchyard-reason"] == "too long for the decode server"


async def test_a_prompt_that_only_looked_too_long_is_split() -> None:
    async with site({"P1": prefill(4000), "D1": streams()}) as place:
        with_limits(place)
        answer = await place.post(chat_body(stream=True, extra="x" * 20_000))
        record = await place.record()
        assert place.nothing_is_held()
    assert (answer.text, record.route, record.attempts) == ("abc", "split", 1)
