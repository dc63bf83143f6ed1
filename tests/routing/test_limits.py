"""The decode server's context is checked before a prefill server works."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from routing.backend import Backend
from routing.limits import fit
from routing.table import Policy, Server
from tests.routing.scripted import Seen, Site, Wire, chat_body, prefills, site, streams, until
from tests.waiting import LIMIT_S

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


def with_limits(place: Site, prefill_limit: int = 8192) -> None:
    servers = [place.server("P1", max_model_len=prefill_limit), replace(place.server("D1"), max_model_len=4096)]
    place.publish(servers=servers)


async def test_a_prompt_too_long_for_decode_is_refused_in_its_words_without_prefill() -> None:
    async with site({"P1": prefill(5000), "D1": refuses}) as place:
        with_limits(place)
        answer = await place.post(chat_body(extra="x" * 20_000))
        assert [seen.path for seen in place["P1"].seen] == ["/tokenize"]
        assert len(place["D1"].seen) == 1
    assert (answer.status, answer.json) == (400, TOO_LONG)
    assert answer.headers["x-switchyard-reason"] == "too long for the decode server"


async def test_who_has_waited_is_not_prefilled_either_when_too_long_for_decode() -> None:
    policy = Policy(wait_for_server_s=LIMIT_S)
    async with site({"P1": prefill(counted=5000), "D1": refuses}, policy, servers=[]) as place:
        request = asyncio.create_task(place.post({"model": "m", "prompt": [1] * 5000}, "/v1/completions"))
        await until(lambda: place.router.active)
        await asyncio.sleep(0.02)
        with_limits(place)
        answer = await request
        assert (answer.status, answer.json) == (400, TOO_LONG)
        assert place["P1"].seen == []


async def test_a_prompt_too_long_for_both_is_refused_by_prefill_and_no_decode_server_reads_it() -> None:
    async def prefill_that_refuses(seen: Seen, wire: Wire) -> None:
        await (wire.json({"count": 5000}) if seen.path == "/tokenize" else wire.json(TOO_LONG, 400))

    body = chat_body(extra="x" * 20_000, max_tokens=50)
    async with site({"P1": prefill_that_refuses, "D1": streams()}) as place:
        with_limits(place, prefill_limit=4096)
        answer = await place.post(body)
        record = await place.record()
        assert place["D1"].seen == []
        assert [seen.path for seen in place["P1"].seen] == ["/tokenize", "/v1/chat/completions"]
        assert place["P1"].seen[1].body == body
    assert (answer.status, answer.json) == (400, TOO_LONG)
    assert (record.prefill_server, record.decode_server, record.outcome) == ("P1", None, "refused")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_for_length_speaks_of_what_the_client_asked_for(stream: bool) -> None:
    async def prefill_that_refuses(seen: Seen, wire: Wire) -> None:
        asked = seen.body.get("max_tokens", 0)
        await wire.json({"error": {"message": f"maximum context length … requested {asked} output tokens"}}, 400)

    async with site({"P1": prefill_that_refuses, "D1": streams()}) as place:
        answer = await place.post(chat_body(max_tokens=77, stream=stream))
        assert place["D1"].seen == []
    assert answer.status == 400
    assert "requested 77 output tokens" in answer.json["error"]["message"]


async def test_a_server_that_does_not_repeat_its_refusal_is_stopped_and_its_first_words_go_out() -> None:
    async def refuses_once(seen: Seen, wire: Wire) -> None:
        if "kv_transfer_params" in seen.body:
            await wire.json(TOO_LONG, 400)
            return
        await wire.start_stream()
        await wire.closed_by_router()

    async with site({"P1": refuses_once, "D1": streams()}) as place:
        answer = await place.chat()
        await until(lambda: place["P1"].open == 0)
        assert place.nothing_is_held()
    assert (answer.status, answer.json) == (400, TOO_LONG)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"max_tokens": 1}),
        ("/v1/responses", {"max_output_tokens": 1}),
        ("/v1/messages", {"messages": []}),
    ],
)
async def test_what_lacks_a_field_is_refused_as_it_came(path: str, body: dict[str, Any]) -> None:
    async with site({"P1": prefills, "D1": refuses}) as place:
        answer = await place.post({"model": "m", **body}, path)
        assert place["P1"].seen == []
        assert place["D1"].seen[0].body == {"model": "m", **body}
    assert (answer.status, answer.json) == (400, TOO_LONG)


async def test_a_prompt_that_only_looked_too_long_is_split() -> None:
    async with site({"P1": prefill(4000), "D1": streams()}) as place:
        with_limits(place)
        answer = await place.post(chat_body(stream=True, extra="x" * 20_000))
        record = await place.record()
        assert place.nothing_is_held()
    assert (answer.text, record.route, record.attempts) == ("abc", "split", 1)
