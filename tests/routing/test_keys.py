"""Keys and headers: the server's key on both legs, the client's never; nothing of ours can be steered from outside."""

import asyncio
import hashlib

import pytest

from tests.routing.scripted import Client, Seen, Wire, answers, chat_answer, chat_body, prefills, site, streams, until


def digest(key: str) -> frozenset[str]:
    return frozenset({hashlib.sha256(key.encode()).hexdigest()})


async def test_servers_see_their_own_key_and_never_the_clients() -> None:
    async with site({"P1": prefills, "D1": streams()}, key_hashes=digest("client-key")) as place:
        servers = [place.server("P1", api_key="server-key"), place.server("D1", api_key="server-key")]
        place.publish(servers=servers, key_hashes=digest("client-key"))
        answer = await place.post(chat_body(), headers={"authorization": "Bearer client-key"})
        await place.get("/v1/models", headers={"authorization": "Bearer client-key"})
        seen = place["P1"].seen + place["D1"].seen
    assert answer.status == 200
    assert {request.headers["authorization"] for request in seen} == {"Bearer server-key"}
    assert not any("client-key" in str(request) for request in seen)


async def test_a_server_without_a_key_gets_none() -> None:
    async with site({"N1": streams()}) as place:
        await place.post(chat_body(), headers={"authorization": "Bearer client-key", "x-api-key": "client-key"})
        headers = place["N1"].seen[0].headers
    assert "authorization" not in headers
    assert "x-api-key" not in headers


async def test_a_wrong_or_missing_key_is_a_401_that_says_what_to_send() -> None:
    async with site({"N1": streams()}, key_hashes=digest("right")) as place:
        missing = await place.post(chat_body())
        wrong = await place.post(chat_body(), headers={"authorization": "Bearer wrong"})
        right = await place.post(chat_body(), headers={"authorization": "bearer right"})
        anthropic = await place.post(chat_body(), headers={"x-api-key": "right"})
        models = await place.get("/v1/models")
    assert [answer.status for answer in (missing, wrong, right, anthropic, models)] == [401, 401, 200, 200, 401]
    assert "Authorization: Bearer" in missing.json["error"]["message"]


async def test_a_key_that_a_newer_table_knows_is_taken_at_once() -> None:
    async with site({"N1": streams()}, key_hashes=digest("old")) as place:

        async def catch_up() -> None:
            place.publish(key_hashes=digest("old") | digest("new"))

        place.router.catch_up = catch_up
        new, wrong = ({"authorization": f"Bearer {key}"} for key in ("new", "wrong"))
        answers = [
            await place.post(chat_body(), headers=wrong),
            await place.post(chat_body(), headers=new),
            await place.get("/v1/models", headers=new),
        ]
        assert place.nothing_is_held()
    assert [answer.status for answer in answers] == [401, 200, 200]


async def test_refusals_that_wait_for_a_newer_table_do_not_mix() -> None:
    async with site({"N1": streams()}, key_hashes=digest("right")) as place:
        number = 0

        async def catch_up() -> None:
            nonlocal number
            number += 1
            await asyncio.sleep(0.001 * (number % 5))

        place.router.catch_up = catch_up
        right = {"authorization": "Bearer right"}
        asked = [(chat_body(), None), (chat_body(model="other"), right), (chat_body(), right)] * 40
        answers = await asyncio.gather(*(place.post(body, headers=headers) for body, headers in asked))
        assert place.nothing_is_held()
    assert [answer.status for answer in answers] == [401, 404, 200] * 40


async def test_a_client_that_leaves_while_a_newer_table_is_looked_for_holds_nothing() -> None:
    async with site({"N1": streams()}, key_hashes=digest("right")) as place:
        looks = asyncio.Event()

        async def catch_up() -> None:
            looks.set()
            await asyncio.Event().wait()

        place.router.catch_up = catch_up
        async with Client(place.port) as client:
            await client.chat()
            await looks.wait()
        assert (await place.record()).outcome == "cancelled"
        assert list(place.router.active) == []


async def test_a_clients_handoff_and_routing_headers_go_nowhere() -> None:
    async with site({"P1": prefills, "D1": streams(), "N1": streams()}) as place:
        canary = place["N1"]
        steering = {"remote_host": "127.0.0.1", "remote_port": canary.port, "do_remote_prefill": True}
        headers = {"x-prefiller-host-port": f"127.0.0.1:{canary.port}", "x-data-parallel-rank": "1"}
        await place.post(chat_body(kv_transfer_params=steering, ec_transfer_params=steering), headers=headers)
        for request in place["P1"].seen + place["D1"].seen:
            assert not {"x-prefiller-host-port", "x-data-parallel-rank"} & set(request.headers)
            assert request.body["kv_transfer_params"].get("remote_port") != canary.port
            assert "ec_transfer_params" not in request.body
        assert canary.seen == []


async def test_a_client_is_told_of_the_load_of_the_server_that_answers() -> None:
    told = {"endpoint-load-metrics": 'JSON {"named_metrics": {"num_requests_waiting": 3.0}}'}
    async with site({"P1": prefills, "D1": answers(200, chat_answer(), told)}) as place:
        answer = await place.post(chat_body(), headers={"Endpoint-Load-Metrics-Format": "JSON"})
        assert place["D1"].seen[0].headers["endpoint-load-metrics-format"] == "JSON"
        assert "endpoint-load-metrics-format" not in place["P1"].seen[0].headers
    assert answer.headers["endpoint-load-metrics"] == told["endpoint-load-metrics"]


async def test_one_request_id_is_on_the_answer_both_legs_and_the_record() -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.post(chat_body(stream=True), headers={"x-request-id": "abc"})
        record = await place.record()
        legs = [place[name].seen[0].headers["x-request-id"] for name in ("P1", "D1")]
    assert (answer.headers["x-request-id"], record.request_id) == ("abc", "abc")
    assert legs == ["abc-p1", "abc"]


async def test_ids_are_made_where_the_client_gave_none_or_a_bad_one() -> None:
    async with site({"N1": streams()}) as place:
        ids = {
            (await place.post(chat_body(), headers=headers)).headers["x-request-id"]
            for headers in ({}, {}, {"x-request-id": "has space"}, {"x-request-id": "x" * 200})
        }
    assert len(ids) == 4
    assert all(len(made) == 32 for made in ids)


WORDS = [{"role": "user", "content": "x" * 300_000}]


@pytest.mark.parametrize(
    ("path", "body", "headers", "id_"),
    [
        ("/v1/chat/completions", {"request_id": "mine"}, {}, "mine"),
        ("/v1/chat/completions", {"request_id": "mine", "messages": WORDS}, {}, "mine"),
        ("/v1/completions", {"request_id": "mine", "prompt": "a"}, {}, "mine"),
        ("/v1/completions", {"request_id": "mine", "prompt": ["a", "b"]}, {}, "mine"),
        ("/v1/responses", {"request_id": "mine", "input": "a"}, {}, "mine"),
        ("/v1/embeddings", {"request_id": "mine", "input": "a"}, {}, "mine"),
        ("/v1/chat/completions", {"request_id": "mine"}, {"x-request-id": "abc"}, "abc"),
        ("/v1/messages", {"request_id": "mine", "max_tokens": 5}, {}, None),
        ("/tokenize", {"request_id": "mine", "prompt": "a"}, {}, None),
        ("/v1/chat/completions", {"request_id": "not mine"}, {}, None),
        ("/v1/chat/completions", {"request_id": "\ud800"}, {}, None),
        ("/v1/chat/completions", {"request_id": "m" * 200}, {}, None),
        ("/v1/chat/completions", {"request_id": 5}, {}, None),
    ],
)
async def test_an_id_in_the_body_is_the_requests_where_engines_take_it(
    path: str, body: dict[str, object], headers: dict[str, str], id_: str | None
) -> None:
    async with site({"P1": prefills, "D1": streams()}) as place:
        answer = await place.post({**chat_body(), **body}, path, headers)
        record = await place.record()
        (seen,) = place["D1"].seen
    assert answer.headers["x-request-id"] == record.request_id == seen.headers["x-request-id"]
    assert seen.body["request_id"] == body["request_id"]
    assert record.request_id == id_ if id_ is not None else len(record.request_id) == 32


async def test_ids_are_unique_per_attempt() -> None:
    boom = answers(500, {"error": {"message": "boom"}})
    async with site({"N1": boom}) as place:
        place.publish(servers=[place.server("N1")])
        async with site({"N1": boom, "N2": boom, "N3": boom}) as three:
            await three.post(chat_body(), headers={"x-request-id": "abc"})
            ids = [seen.headers["x-request-id"] for engine in three.engines.values() for seen in engine.seen]
    assert sorted(ids) == ["abc", "abc-d2", "abc-d3"]


async def test_a_new_generation_of_a_server_gets_new_connections_and_running_streams_go_on() -> None:
    async def waits(seen: Seen, wire: Wire) -> None:
        await streams(gap_s=0.1)(seen, wire)

    async with site({"N1": waits}) as place, Client(place.port) as client:
        await client.chat(stream=True)
        await client.head()
        place.publish(servers=[place.server("N1", generation=2)])
        assert (await place.chat()).status == 200
        assert place["N1"].accepted == 2
        text = b""
        while chunk := await client.chunk():
            text += chunk
        assert b"[DONE]" in text
        await until(lambda: place["N1"].open == 1)


async def test_a_vanished_server_leaves_routing_at_once_and_its_streams_go_on() -> None:
    async with site({"N1": streams(gap_s=0.1), "N2": streams()}) as place, Client(place.port) as client:
        place.publish(servers=[place.server("N1")])
        await client.chat(stream=True)
        await client.head()
        place.publish(servers=[place.server("N2")])
        for _ in range(5):
            assert (await place.chat(stream=True)).headers["x-switchyard-decode"] == "N2"
        text = b""
        while chunk := await client.chunk():
            text += chunk
        assert b"[DONE]" in text


async def test_changing_the_table_under_load_loses_nothing() -> None:
    import asyncio

    async with site({"P1": prefills, "P2": prefills, "D1": streams(gap_s=0.002), "D2": streams(gap_s=0.002)}) as place:
        stop = asyncio.Event()

        async def load() -> int:
            served = 0
            while not stop.is_set():
                answer = await place.chat(stream=True)
                assert (answer.status, answer.text) == (200, "abc")
                served += 1
            return served

        loads = [asyncio.create_task(load()) for _ in range(8)]
        every = [place.server(name) for name in place.engines]
        for turn in range(60):
            without = every[turn % 4]
            place.publish(servers=[server for server in every if server is not without])
            await asyncio.sleep(0.01)
        stop.set()
        assert sum(await asyncio.gather(*loads)) > 20
        await until(place.nothing_is_held)
