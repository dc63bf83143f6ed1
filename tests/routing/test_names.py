"""Further names of a model, and LoRA adapters: requests that ask for one go to servers that list it."""

import asyncio
import hashlib
import time
from types import MappingProxyType

import pytest

from routing import cards, names
from routing.table import Deployment, Policy, Table, Timeouts
from tests.routing.crew import crew
from tests.routing.scripted import (
    Answer,
    Engine,
    Json,
    Script,
    Seen,
    Site,
    Wire,
    chat_answer,
    chat_body,
    hangs,
    prefill_answer,
    site,
    until,
)
from tests.simulator.harness import SimulatedServer
from tests.waiting import LIMIT_S


def lists_names(listed: list[str], then: Script | None = None) -> Script:
    """Serves what it lists at that moment, as an engine does."""

    async def script(seen: Seen, wire: Wire) -> None:
        if seen.path == "/v1/models":
            await wire.json({"object": "list", "data": [{"id": name, "max_model_len": 4096} for name in listed]})
        elif seen.body.get("model") not in listed:
            error = {"message": f"The model `{seen.body.get('model')}` does not exist.", "type": "NotFoundError"}
            await wire.json({"error": {**error, "param": "model", "code": 404}}, 404)
        elif then is not None:
            await then(seen, wire)
        elif "kv_transfer_params" in seen.body and seen.body["kv_transfer_params"].get("do_remote_decode"):
            await wire.json(prefill_answer())
        else:
            await wire.json(chat_answer())

    return script


def asked_for_cards(*engines: Engine) -> int:
    return sum(seen.path == "/v1/models" for engine in engines for seen in engine.seen)


def served(engine: Engine) -> list[Json]:
    return [seen.body for seen in engine.seen if seen.path != "/v1/models"]


async def chats(place: Site, model: str, count: int = 1) -> list[Answer]:
    return [await place.chat(model=model) for _ in range(count)]


def deployment(place: Site, name: str, *servers: str, key: str | None = None, model: str = "") -> Deployment:
    keys = None if key is None else frozenset({hashlib.sha256(key.encode()).hexdigest()})
    return Deployment(name, model or name, tuple(place.server(server) for server in servers), key_hashes=keys)


def publish(place: Site, *deployments: Deployment) -> None:
    rows = {one.model: one for one in deployments}
    place.router.swap(Table(place.router.table.epoch + 1, MappingProxyType(rows)))


async def test_a_second_name_is_split_like_the_first() -> None:
    script = lists_names(["m", "second"])
    async with site({"P1": script, "D1": script}) as place:
        [answer] = await chats(place, "second")
        record = await place.record()
        assert [body["model"] for engine in ("P1", "D1") for body in served(place[engine])] == ["second"] * 2
    assert answer.status == 200
    assert (record.route, record.deployment) == ("split", "m")


async def test_an_adapter_goes_to_the_servers_that_list_it_alone() -> None:
    with_it, without = lists_names(["m", "lora"]), lists_names(["m"])
    async with site({"P1": without, "P2": with_it, "D1": without, "D2": with_it, "D3": without}) as place:
        answers = await chats(place, "lora", 6)
        records = await place.records.wait(6)
    assert {answer.status for answer in answers} == {200}
    assert {(one.prefill_server, one.decode_server, one.attempts) for one in records} == {("P2", "D2", 1)}


async def test_a_decode_server_does_alone_what_no_prefill_server_lists() -> None:
    async with site({"P1": lists_names(["m"]), "D1": lists_names(["m", "lora"])}) as place:
        [answer] = await chats(place, "lora")
        record = await place.record()
        assert served(place["P1"]) == []
    assert (answer.status, record.route) == (200, "fallback")


async def test_a_deployments_own_name_asks_nobody_for_cards() -> None:
    script = lists_names(["m", "second"])
    async with site({"P1": script, "D1": script}) as place:
        await chats(place, "m", 3)
        assert asked_for_cards(place["P1"], place["D1"]) == 0


async def test_what_servers_said_is_remembered() -> None:
    script = lists_names(["m", "second"])
    async with site({"D1": script, "D2": script}) as place:
        await chats(place, "second", 5)
        assert asked_for_cards(place["D1"], place["D2"]) == 2


async def test_an_adapter_that_was_just_loaded_is_served_at_once() -> None:
    listed = ["m"]
    async with site({"N1": lists_names(["m"]), "N2": lists_names(listed)}) as place:
        [before] = await chats(place, "late")
        listed.append("late")
        after = await chats(place, "late", 3)
        record = place.records.all[-1]
    assert (before.status, before.json["error"]["param"]) == (404, "model")
    assert {answer.status for answer in after} == {200}
    assert record.decode_server == "N2"


async def test_an_adapter_that_one_server_unloaded_is_served_by_another_without_a_failure() -> None:
    first, second = ["m", "lora"], ["m", "lora"]
    async with site({"N1": lists_names(first), "N2": lists_names(second)}) as place:
        await chats(place, "lora")
        first.remove("lora")
        answers = await chats(place, "lora", 8)
        assert {answer.status for answer in answers} == {200}
        await chats(place, "lora", 3)
        assert sum(seen.path != "/v1/models" for seen in place["N1"].seen) <= 2  # One before, and one that told.


async def test_an_adapter_that_nobody_lists_any_more_gets_the_engines_own_refusal() -> None:
    listed = ["m", "lora"]
    async with site({"N1": lists_names(listed)}) as place:
        await chats(place, "lora")
        listed.remove("lora")
        [last] = await chats(place, "lora")
    assert last.status == 404
    assert last.json["error"]["message"] == "The model `lora` does not exist."


async def test_what_is_known_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "FRESH_S", 0.0)
    listed = ["m"]
    async with site({"N1": lists_names(["m", "lora"]), "N2": lists_names(listed)}) as place:
        await chats(place, "lora")
        listed.append("lora")

        async with asyncio.timeout(LIMIT_S):
            while place.records.all[-1].decode_server != "N2":
                await chats(place, "lora")


async def test_a_name_that_nobody_lists_is_a_404_and_many_of_them_few_questions() -> None:
    async with site({"N1": lists_names(["m"])}) as place:
        answers = await asyncio.gather(*(place.chat(model=f"unknown-{number}") for number in range(40)))
        assert asked_for_cards(place["N1"]) < 20
        assert served(place["N1"]) == []
    assert {answer.status for answer in answers} == {404}
    assert "Served: m." in answers[0].json["error"]["message"]


@pytest.mark.parametrize("named", [{}, {"model": None}, {"model": ""}])
async def test_a_request_that_names_no_model_makes_nobody_ask(named: Json) -> None:
    """Of several it must name one."""
    async with site({"N1": lists_names(["a"]), "N2": lists_names(["b"])}) as place:
        publish(place, deployment(place, "a", "N1"), deployment(place, "b", "N2"))
        answer = await place.post({"messages": [{"role": "user", "content": "hi"}], **named})
        assert asked_for_cards(place["N1"], place["N2"]) == 0
    assert (answer.status, answer.json["error"]["param"]) == (404, "model")
    assert "Served: a, b." in answer.json["error"]["message"]


async def test_a_server_that_joins_is_asked_before_a_request_passes_it_over() -> None:
    async with site({"N1": lists_names(["m", "lora"]), "N2": lists_names(["m", "lora"])}) as place:
        place.publish(servers=[place.server("N1")])
        await chats(place, "lora")
        place.publish(servers=[place.server("N1", accepting=False), place.server("N2")])
        [answer] = await chats(place, "lora")
        record = place.records.all[-1]
    assert (answer.status, record.decode_server) == (200, "N2")


async def test_a_name_waits_for_its_server_to_come_back_as_the_deployments_own_does() -> None:
    async with site({"N1": lists_names(["m", "lora"])}) as place:
        await chats(place, "lora")
        place.publish(servers=[])
        [gone] = await chats(place, "lora")
        place.publish(Policy(wait_for_server_s=30), servers=[], starting=True)
        waiting = asyncio.create_task(place.chat(model="lora"))
        await until(lambda: len(list(place.router.active)) == 1)
        place.publish(Policy(wait_for_server_s=30), servers=[place.server("N1", generation=2)])
        answer = await waiting
        assert place.nothing_is_held()
    assert (gone.status, "retry-after" in gone.headers) == (503, True)
    assert "lora cannot be served now" in gone.json["error"]["message"]
    assert answer.status == 200


async def test_a_server_that_came_back_without_the_adapter_makes_it_unknown() -> None:
    listed = ["m", "lora"]
    async with site({"N1": lists_names(listed)}) as place:
        await chats(place, "lora")
        listed.remove("lora")
        place.publish(servers=[place.server("N1", generation=2)])
        assert [answer.status for answer in await chats(place, "lora", 2)] == [503, 404]


async def test_a_deployments_own_name_goes_before_what_others_list() -> None:
    async with site({"N1": lists_names(["a", "b"]), "N2": lists_names(["b"])}) as place:
        publish(place, deployment(place, "a", "N1"), deployment(place, "b", "N2"))
        await place.get("/v1/models")
        await chats(place, "b", 4)
        assert {record.deployment for record in place.records.all if record.path != "/v1/models"} == {"b"}


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_of_two_deployments_that_list_a_name_the_first_by_name_serves_it(order: str) -> None:
    async with site({"N1": lists_names(["a", "x"]), "N2": lists_names(["b", "x"])}) as place:
        made = {"a": deployment(place, "a", "N1"), "b": deployment(place, "b", "N2")}
        publish(place, *(made[name] for name in order))
        await chats(place, "x", 4)
        assert {record.deployment for record in place.records.all} == {"a"}


async def test_a_deployment_whose_servers_drain_comes_after_one_that_takes_requests() -> None:
    async with site({"N1": lists_names(["a", "x"]), "N2": lists_names(["b", "x"])}) as place:
        drains = Deployment("a", "a", (place.server("N1", accepting=False),))
        publish(place, drains, deployment(place, "b", "N2"))
        await chats(place, "x")
        assert (await place.record()).deployment == "b"


async def test_a_key_opens_the_names_of_its_own_deployment_alone() -> None:
    async with site({"N1": lists_names(["a", "x"]), "N2": lists_names(["b", "x", "only-b"])}) as place:
        publish(place, deployment(place, "a", "N1", key="of-a"), deployment(place, "b", "N2", key="of-b"))
        wanted = [("of-a", "x"), ("of-b", "x"), ("of-a", "only-b"), ("of-b", "only-b"), ("wrong", "x")]
        answers = [
            await place.post(chat_body(model=model), headers={"authorization": f"Bearer {key}"})
            for key, model in wanted
        ]
        deployments = [record.deployment for record in place.records.all if record.outcome == "ok"]
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 401]
    assert deployments == ["a", "b", "b"]


async def test_a_list_of_models_holds_what_any_server_lists() -> None:
    async with site({"N1": lists_names(["m"]), "N2": lists_names(["m", "lora"])}) as place:
        listed = [card["id"] for card in (await place.get("/v1/models")).json["data"]]
        one = await place.get("/v1/models/lora")
    assert listed == ["m", "lora"]
    assert (one.status, one.json["id"]) == (200, "lora")


async def test_a_server_that_does_not_say_what_it_lists_keeps_no_name_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "ANSWER_WITHIN_S", 0.1)
    async with site({"N1": lists_names(["m", "lora"]), "N2": hangs, "N3": lists_names(["m"])}) as place:
        await place["N3"].go_down()
        answers = await chats(place, "lora", 3)
        assert place.nothing_is_held()
    assert {answer.status for answer in answers} == {200}


def let_questions_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than any test: whoever waits for a server that hangs fails."""
    monkeypatch.setattr(names, "ANSWER_WITHIN_S", 3600.0)
    monkeypatch.setattr(cards, "CARD_TIMEOUTS", Timeouts())


async def test_a_server_that_hangs_is_waited_for_once_before_an_unknown_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first question ends at once here, and the second never."""
    monkeypatch.setattr(names, "ANSWER_WITHIN_S", 0.1)
    async with site({"N1": lists_names(["m"]), "N2": hangs}) as place:
        await chats(place, "unknown")
        let_questions_last(monkeypatch)
        answers = await chats(place, "unknown", 3)
        assert asked_for_cards(place["N2"]) == 2
        assert {answer.status for answer in answers} == {404}
    assert place.nothing_is_held()


async def test_a_server_that_hung_and_answers_again_is_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "ANSWER_WITHIN_S", 0.1)
    async with site({"N1": lists_names(["m"]), "N2": hangs}) as place:
        assert [answer.status for answer in await chats(place, "lora")] == [404]
        let_questions_last(monkeypatch)
        monkeypatch.setattr(names, "HARDLY_WITHIN_S", 3600.0)
        place["N2"].script = lists_names(["m", "lora"])
        assert [answer.status for answer in await chats(place, "lora")] == [200]


async def test_a_silent_server_is_hardly_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    let_questions_last(monkeypatch)
    async with site({"N1": lists_names(["m"]), "N2": hangs}) as place:
        place.router.layouts["m"].by_id["N2"].life.given_up_at = time.monotonic()
        assert [answer.status for answer in await chats(place, "unknown", 2)] == [404, 404]


async def test_other_paths_take_such_names_too() -> None:
    async def counts(seen: Seen, wire: Wire) -> None:
        await wire.json({"count": 3})

    async with site({"D1": lists_names(["m"]), "D2": lists_names(["m", "lora"], counts)}) as place:
        answer = await place.post({"model": "lora", "prompt": "x"}, "/tokenize")
    assert answer.json == {"count": 3}


async def test_a_prompt_that_is_cached_for_the_model_is_not_for_its_adapter() -> None:
    script = lists_names(["m", "lora"])
    async with site({"P1": script, "D1": script}) as place:
        for model in ("m", "m", "lora", "lora"):
            await place.chat(model=model, messages=[{"role": "user", "content": "word " * 1000}])
        reasons = [record.reason for record in place.records.all]
    assert reasons == ["least busy", "prefix on P1"] * 2


async def test_the_router_alone_serves_every_name_with_each_worker() -> None:
    args = ["--served-model-name", "tiny", "second", "--lora-modules", "lora=/a"]
    env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    async with (
        SimulatedServer("prefill", args=args, env=env) as prefill,
        SimulatedServer("decode", args=args, env=env) as decode,
        crew("--prefill", prefill.url, "--decode", decode.url) as made,
    ):
        for client in await made.one_client_each():
            for model in ("tiny", "second", "lora"):
                await client.send("POST", "/v1/completions", {"model": model, "prompt": "hello " * 40, "max_tokens": 2})
                answer = await client.answer()
                assert (answer.status, answer.headers["x-switchyard-route"]) == (200, "split")
                assert answer.json["model"] == ("lora" if model == "lora" else "tiny")
