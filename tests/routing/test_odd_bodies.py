"""Bodies that an engine takes and that are hard to pass on: odd encodings, deep nesting, names of any length."""

import json

import pytest

from tests.routing.scripted import Face, answers, chat_body, prefills, site, streams

DEPTHS = (200, 253, 256, 900, 980, 995, 1000, 1005, 1010, 1015, 1020, 1024, 1030, 100_000)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le"])
async def test_both_servers_read_a_body_in_any_encoding_of_unicode(encoding: str) -> None:
    raw = json.dumps(chat_body(content="wörd", stream=True), ensure_ascii=False).encode(encoding)
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.post(raw)
        seen = [place["P1"].seen[0].body, place["D1"].seen[0].body]
    assert (answer.status, answer.headers["x-switchyard-route"], answer.text) == (200, "split", "abc")
    assert [body["content"] for body in seen] == ["wörd", "wörd"]


async def test_a_body_that_is_nested_too_deeply_is_the_clients_to_mend() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        for depth in DEPTHS:
            nested = b"[" * depth + b"]" * depth
            raw = json.dumps(chat_body()).encode()[:-1] + b', "chat_template_kwargs": %b}' % nested
            answer = await place.post(raw)
            assert answer.status in (200, 400), depth
        assert place.nothing_is_held()
    assert "nested" in answer.json["error"]["message"] or "recursion" in answer.json["error"]["message"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
async def test_a_large_body_may_be_in_any_encoding_too(encoding: str) -> None:
    messages = [{"role": "user", "content": "wörd " * 60_000}]
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.post(json.dumps(chat_body(messages=messages)).encode(encoding))
        seen = [place["P1"].seen[0].body["messages"], place["D1"].seen[0].body["messages"]]
    assert answer.status == 200
    assert seen == [messages, messages]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("face", ["direct", "asgi"])
async def test_half_a_character_in_a_models_name_is_refused(path: str, face: Face) -> None:
    async with site({"N1": streams()}, face=face) as place:
        answer = await place.post(b'{"model": "\\ud800", "messages": []}', path)
        record = await place.record()
    assert answer.status == 404
    assert "`?` is not served here" in answer.json["error"]["message"]
    assert record.error.isprintable()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [-(10**400), 10**400, -1], ids=["far below", "far above", "below"])
async def test_a_limit_of_any_size_is_the_engines_to_refuse(name: str, value: int) -> None:
    bad = {"error": {"message": "no such limit"}}
    async with site({"P1": answers(400, bad), "D1": answers(400, bad)}) as place:
        servers = [place.server(server, max_model_len=4096) for server in ("P1", "D1")]
        place.publish(servers=servers)
        answer = await place.post(json.dumps(chat_body(**{name: value})).encode())
    assert (answer.status, answer.json) == (400, bad)


async def test_a_session_is_remembered_in_few_bytes_whatever_its_name() -> None:
    async with site({"N1": streams(), "N2": streams()}) as place:
        for name in ("user", "session_id", "prompt_cache_key"):
            await place.chat(**{name: name * 10_000})
        await place.post(chat_body(), headers={"x-session-id": "s" * 50_000})
        sessions = list(place.router.layouts["m"].sessions._servers)
    assert len(sessions) == 4
    assert max(len(str(session)) for session in sessions) <= 64


async def test_a_session_of_any_characters_stays_on_its_server() -> None:
    names = ["é", "\ud800", "名", "x" * 100_000]
    async with site({f"N{number}": streams() for number in range(1, 5)}) as place:
        for name in names:
            first, *others = [await place.chat(user=name) for _ in range(4)]
            assert first.status == 200
            assert {answer.headers["x-switchyard-decode"] for answer in others} == {
                first.headers["x-switchyard-decode"]
            }
