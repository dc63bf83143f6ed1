"""Several workers answer as one router: whichever gets a request knows what the others know."""

import asyncio
import os
import signal
from collections.abc import Mapping

import pytest

from tests.routing.crew import Crew, crew_before, figures, metrics_of_all
from tests.routing.scripted import Answer, Client, Engine, Seen, Wire, after, chat_body, streams, until

REQUESTS = 'switchyard_router_requests_total{deployment="alone",outcome="ok",route="plain"}'
SERVERS = ("N1", "N2", "N3", "N4")


async def stored(seen: Seen, wire: Wire) -> None:
    """Makes and keeps responses, named by the server's port."""
    port = wire.writer.get_extra_info("sockname")[1]
    if seen.method == "POST" and seen.path == "/v1/responses" and seen.body.get("stream"):
        await wire.start_stream()
        await wire.event({"type": "response.created", "response": {"id": f"resp_stream_{port}"}})
        await wire.event({"type": "response.output_text.delta", "delta": "a"})
        await wire.closed_by_router()
        return
    await wire.json({"id": f"resp_{port}", "usage": {"input_tokens": 1}})


async def send(client: Client, method: str, path: str, body: object = None) -> Answer:
    await client.send(method, path, body)
    return await client.answer()


async def test_every_worker_serves() -> None:
    async with crew_before({"N1": streams()}, workers=3) as (made, _):
        clients = await made.one_client_each()
        for client in clients:
            await client.chat(stream=True)
            assert (await client.answer()).text == "abc"


async def test_a_stored_response_is_found_whichever_worker_is_asked() -> None:
    async with crew_before(dict.fromkeys(SERVERS, stored)) as (made, _):
        one, other = await made.one_client_each()
        for _ in range(6):
            response_id = (await send(one, "POST", "/v1/responses", {"model": "m", "input": "x"})).json["id"]
            follow = {"model": "m", "input": "x", "previous_response_id": response_id}
            assert (await send(other, "GET", f"/v1/responses/{response_id}")).json["id"] == response_id
            assert (await send(other, "POST", f"/v1/responses/{response_id}/cancel")).json["id"] == response_id
            assert (await send(other, "POST", "/v1/responses", follow)).json["id"] == response_id
        assert (await send(other, "GET", "/v1/responses/resp_unknown")).status == 404


async def test_a_response_can_be_cancelled_by_the_other_worker_while_it_streams() -> None:
    async with crew_before({"N1": stored, "N2": stored}) as (made, engines):
        one, other = await made.one_client_each()
        await one.send("POST", "/v1/responses", {"model": "m", "input": "x", "stream": True})
        assert (await one.head())[0] == 200
        response_id = (await one.chunk()).split(b'"id":"')[1].split(b'"')[0].decode()
        assert (await send(other, "POST", f"/v1/responses/{response_id}/cancel")).status == 200
        maker = next(engine for engine in engines.values() if str(engine.port) in response_id)
        assert posted_to(maker)[-1] == f"/v1/responses/{response_id}/cancel"


async def test_responses_are_known_to_a_worker_that_replaces_another() -> None:
    async with crew_before(dict.fromkeys(SERVERS, stored)) as (made, _):
        before = made.workers()
        one = await made.at(before[0])
        response_id = (await send(one, "POST", "/v1/responses", {"model": "m", "input": "x"})).json["id"]
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: before[0] not in made.workers())
        await made.all_serve(2)
        clients = await made.one_client_each()
        for client in clients:
            assert (await send(client, "GET", f"/v1/responses/{response_id}")).json["id"] == response_id


@pytest.mark.parametrize("text", ["hello", "a long beginning " * 100])
async def test_what_one_worker_sent_somewhere_the_other_sends_there_too(text: str) -> None:
    """A session, or a prompt that begins alike."""
    async with crew_before(dict.fromkeys(SERVERS, streams())) as (made, _):
        one, other = await made.one_client_each()
        more = {"user": "someone"} if text == "hello" else {}
        body = chat_body(messages=[{"role": "user", "content": text}], **more)
        first = await send(one, "POST", "/v1/chat/completions", body)
        for _ in range(5):
            again = await send(other, "POST", "/v1/chat/completions", body)
            assert again.headers["x-switchyard-decode"] == first.headers["x-switchyard-decode"]
            assert again.headers["x-switchyard-reason"].startswith("session on" if more else "prefix on")


async def test_a_burst_over_two_workers_spreads_evenly_over_idle_servers() -> None:
    go = asyncio.Event()
    async with crew_before(dict.fromkeys(SERVERS, after(go, streams()))) as (made, engines):
        clients = await half_each(made, 50)
        await asyncio.gather(*(client.chat(stream=True) for client in clients))
        await until(lambda: sum(counts(engines)) == 50)
        assert max(counts(engines)) - min(counts(engines)) <= 3
        go.set()
        answers = await asyncio.gather(*(client.answer() for client in clients))
        assert [answer.text for answer in answers] == ["abc"] * 50


async def half_each(made: Crew, count: int) -> list[Client]:
    """So many clients, the same number at each worker."""
    found: dict[int, list[Client]] = {worker: [] for worker in made.workers()}
    share = count // len(found)
    while any(len(clients) < share for clients in found.values()):
        for client, worker in (await made.connect(count)).items():
            found[worker].append(client)
    return [client for clients in found.values() for client in clients[:share]]


def posted_to(engine: Engine) -> list[str]:
    """The paths; a worker that has just begun asks for the model cards meanwhile."""
    return [seen.path for seen in engine.seen if seen.method == "POST"]


def counts(engines: Mapping[str, Engine]) -> list[int]:
    """Of completions that each server was asked for."""
    return [len(posted_to(engine)) for engine in engines.values()]


async def test_the_metrics_of_any_worker_are_those_of_all() -> None:
    async with crew_before({"N1": streams()}) as (made, _):
        clients = await made.one_client_each()
        for number, client in enumerate(clients):
            for _ in range(3 + number):
                await client.chat(stream=True)
                await client.answer()
        for client in clients:
            text = await metrics_of_all(client)
            assert f"{REQUESTS} 7.0" in text
            assert 'switchyard_router_time_to_first_token_seconds_count{deployment="alone",route="plain"} 7.0' in text
            assert 'le="+Inf",route="plain"} 7.0' in text
            assert 'switchyard_router_connections{kind="limit",server="plain-1"} 2048.0' in text
            assert text.count("# TYPE switchyard_router_requests_total counter") == 1
            assert "switchyard_router_workers 2.0" in text
            assert "switchyard_router_workers_answered 2.0" in text


async def test_metrics_add_up_what_is_under_way() -> None:
    go = asyncio.Event()
    async with crew_before({"N1": after(go, streams())}) as (made, engines):
        clients = await made.one_client_each()
        for client in clients:
            await client.chat(stream=True)
        await until(lambda: sum(counts(engines)) == 2)
        assert (await figures(made.port))['switchyard_router_server_inflight{server="plain-1"}'] == 2
        go.set()
        for client in clients:
            await client.answer()
        assert (await figures(made.port))['switchyard_router_server_inflight{server="plain-1"}'] == 0


async def test_metrics_come_without_a_worker_that_hangs_and_say_so() -> None:
    async with crew_before({"N1": streams()}) as (made, _):
        hanging, awake = made.workers()
        client = await made.at(awake)
        await client.chat(stream=True)
        await client.answer()
        os.kill(hanging, signal.SIGSTOP)
        text = (await send(client, "GET", "/metrics")).body.decode()
        assert "switchyard_router_workers 2.0" in text
        assert "switchyard_router_workers_answered 1.0" in text
        assert f"{REQUESTS} 1.0" in text
        assert (await send(client, "GET", "/healthz")).status == 200
        os.kill(hanging, signal.SIGCONT)
        # What was asked meanwhile is answered to nobody, and disturbs nothing.
        assert "switchyard_router_workers_answered 2.0" in await metrics_of_all(client)


async def count_of(made: Crew) -> float:
    return (await figures(made.port))[REQUESTS]


async def test_no_counter_goes_backwards_when_workers_die_however_often() -> None:
    async with crew_before({"N1": streams()}) as (made, _):
        for round_ in range(1, 4):
            for client in await made.one_client_each():
                for _ in range(3):
                    await client.chat()
                    await client.answer()
            assert await count_of(made) == 6 * round_
            dies = made.workers()[round_ % 2]
            os.kill(dies, signal.SIGKILL)
            await until(lambda dies=dies: dies not in made.workers())  # type: ignore[misc]
            async with Client(made.port) as client:
                assert f"{REQUESTS} {6 * round_}.0" in (await send(client, "GET", "/metrics")).body.decode()
            await made.all_serve(2)
            assert await count_of(made) == 6 * round_


async def test_no_counter_goes_backwards_while_a_worker_hangs() -> None:
    async with crew_before({"N1": streams()}) as (made, _):
        hanging, awake = made.workers()
        for worker in (hanging, awake):
            client = await made.at(worker)
            await client.chat()
            await client.answer()
        assert await count_of(made) == 2
        os.kill(hanging, signal.SIGSTOP)
        assert f"{REQUESTS} 2.0" in (await send(client, "GET", "/metrics")).body.decode()
        os.kill(hanging, signal.SIGCONT)
