"""Pages of other sites: what servers say of them comes through, and the router's own errors can be read."""

import asyncio
from types import MappingProxyType

import pytest

from console.simulator.cors import METHODS
from routing.cors import LONGEST_ORIGIN, MOST_ORIGINS, Origins
from routing.reply import Request
from routing.table import Deployment, Policy, Server, Table
from tests.routing.scripted import (
    SSE,
    Answer,
    Face,
    Json,
    Script,
    Seen,
    Wire,
    answers,
    ask,
    chat_body,
    chat_chunk,
    hangs,
    head,
    lists,
    prefills,
    site,
)
from tests.simulator.harness import SimulatedServer

both_faces = pytest.mark.parametrize("face", ["direct", "asgi"])
APP = "https://app.example"
ORIGIN = {"origin": APP}
PREFLIGHT = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
SAID = {"access-control-allow-origin": APP, "access-control-allow-credentials": "true", "vary": "Origin"}
OK, NO = {"preflight": "OK"}, {"preflight": "Disallowed CORS origin"}
CHAT = "/v1/chat/completions"


def says(body: Json | None = None, status: int = 200, headers: dict[str, str] = SAID) -> Script:
    """A server with a setting of its own; streams when asked to."""

    async def script(seen: Seen, wire: Wire) -> None:
        if seen.raw and seen.body.get("stream"):
            await wire.send(head(200, {"content-type": SSE, "transfer-encoding": "chunked", **headers}))
            await wire.event(chat_chunk({"content": "a"}, "stop"))
            await wire.end_stream()
        else:
            await wire.json(body or {"object": "list", "data": [{"id": "m"}]}, status, headers)

    return script


def cors_of(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-") or name == "vary"}


@both_faces
@pytest.mark.parametrize("stream", [False, True])
async def test_the_server_that_answers_says_who_may_read_it(face: Face, stream: bool) -> None:
    async with site({"P1": prefills, "D1": says()}, face=face) as place:
        answer = await place.post(chat_body(stream=stream), headers=ORIGIN)
        assert place["D1"].seen[0].headers["origin"] == APP
    assert (answer.status, cors_of(answer)) == (200, SAID)
    assert (answer.headers["x-switchyard-route"], answer.headers["x-switchyard-decode"]) == ("split", "D1")


@both_faces
@pytest.mark.parametrize("refusing", ["P1", "D1"])
async def test_so_does_one_that_refuses(face: Face, refusing: str) -> None:
    scripts = {"P1": prefills, "D1": says()} | {refusing: says({"error": {"message": "no"}}, 422)}
    async with site(scripts, face=face) as place:
        answer = await place.post(chat_body(), headers=ORIGIN)
    assert (answer.status, cors_of(answer)) == (422, SAID)


async def test_nothing_is_said_to_who_names_no_origin() -> None:
    async with site({"N1": answers(200, {})}) as place:
        answer = await place.post(chat_body())
        refused = await place.post(chat_body(model="other"))
        models = await place.get("/v1/models")
        assert all("origin" not in seen.headers for seen in place["N1"].seen)
    assert cors_of(answer) == cors_of(refused) == cors_of(models) == {}


@both_faces
@pytest.mark.parametrize("path", [CHAT, CHAT + "/", "/v1/models", "/tokenize", "/v1/responses/resp_1"])
async def test_a_preflight_is_answered_by_a_server_and_is_no_request(face: Face, path: str) -> None:
    async with site({"P1": prefills, "D1": says(OK)}, face=face, key_hashes=frozenset({"0"})) as place:
        answer = await ask(
            place.port, "OPTIONS", path, None, PREFLIGHT | {"cookie": "a=b", "authorization": "Bearer x"}
        )
        (seen,) = place["D1"].seen
        assert (place["P1"].seen, place.records.all) == ([], [])
        assert list(place.router.active) == []
        assert place.nothing_is_held()
        assert b"requests_total{" not in place.router.metrics.render()
    assert (answer.status, answer.json, cors_of(answer)) == (200, OK, SAID)
    assert not any(name.startswith("x-switchyard") for name in answer.headers)
    assert (seen.method, seen.path, seen.raw) == ("OPTIONS", path.rstrip("/"), b"")
    assert {name: seen.headers.get(name) for name in PREFLIGHT} == PREFLIGHT
    assert not {"cookie", "authorization", "content-length"} & set(seen.headers)


@both_faces
@pytest.mark.parametrize("path", ["/metrics", "/sleep", "/v1/load_lora_adapter", "/v1/responses/../../sleep"])
async def test_no_preflight_reaches_a_control_path(face: Face, path: str) -> None:
    async with site({"N1": says(OK)}, face=face) as place:
        assert (await ask(place.port, "OPTIONS", path, None, PREFLIGHT)).status == 404
        assert place["N1"].seen == []


@pytest.mark.parametrize("name", ["x/../../../sleep", "a%20b", "org/model"])
async def test_a_models_name_goes_no_further_than_here(name: str) -> None:
    async with site({"N1": says(OK)}) as place:
        assert (await ask(place.port, "OPTIONS", f"/v1/models/{name}", None, PREFLIGHT)).status == 200
        assert [seen.path for seen in place["N1"].seen] == ["/v1/models"]


async def test_a_server_that_refuses_a_preflight_is_believed() -> None:
    async with site({"N1": says(NO, 400, {"vary": "Origin"})}) as place:
        answer = await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
    assert (answer.status, answer.json, cors_of(answer)) == (400, NO, {"vary": "Origin"})


async def test_a_preflight_goes_to_a_server_that_takes_requests() -> None:
    async with site({"D1": says(OK), "D2": says(OK), "N1": answers(500, "no"), "P1": says(OK)}) as place:
        servers = [place.server("D1", accepting=False), *(place.server(name) for name in ("D2", "N1", "P1"))]
        place.publish(servers=servers)
        await place["D2"].go_down()
        answer = await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
        assert [len(place[name].seen) for name in ("D1", "N1", "P1")] == [0, 1, 1]
    assert (answer.status, cors_of(answer)) == (200, SAID)


@both_faces
async def test_without_a_server_a_preflight_is_a_503_that_names_none(face: Face) -> None:
    async with site({"N1": answers(403, "no")}, face=face) as place:
        refused = await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
        await place["N1"].go_down()
        down = await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
        place.router.swap(Table())
        empty = await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
    for answer in (refused, down, empty):
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
        assert "N1" not in answer.json["error"]["message"]


@both_faces
@pytest.mark.parametrize("headers", [{}, ORIGIN, {"access-control-request-method": "POST"}])
async def test_other_options_are_a_405_that_names_the_method(face: Face, headers: dict[str, str]) -> None:
    async with site({"N1": says(OK)}, face=face) as place:
        answer = await ask(place.port, "OPTIONS", CHAT, None, headers)
        models = await ask(place.port, "OPTIONS", "/v1/models", None, headers)
        assert place["N1"].seen == []
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert (models.status, models.headers["allow"]) == (405, "GET")


@both_faces
async def test_own_errors_can_be_read_by_any_page(face: Face) -> None:
    key = frozenset({"0"})
    async with site({"N1": says()}, Policy(retries=0), face=face, max_body_bytes=1000, key_hashes=key) as place:
        found = [
            await place.post(chat_body(), headers=ORIGIN),
            await place.get("/v1/models", ORIGIN),
            await place.get("/v1/nothing", ORIGIN),
            await place.get(CHAT, ORIGIN),
            await place.post(chat_body(user="x" * 2000), headers=ORIGIN),
        ]
        place.publish(Policy(retries=0))
        found.append(await place.post(b"{", headers=ORIGIN))
        await place["N1"].go_down()
        found.append(await place.post(chat_body(), headers=ORIGIN))
        place.router.swap(Table())
        found.append(await place.post(chat_body(), headers=ORIGIN))
    assert [answer.status for answer in found] == [401, 401, 404, 405, 413, 400, 502, 503]
    own = {"access-control-allow-origin": "*", "vary": "Origin"}
    assert [cors_of(answer) for answer in found] == [own] * len(found)


@both_faces
async def test_own_errors_can_be_read_by_whom_servers_let_read_theirs(face: Face) -> None:
    async with site({"N1": says(OK)}, face=face) as place:
        await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
        found = [await place.get("/v1/nothing", ORIGIN | cookie) for cookie in ({}, {"cookie": "a=b"})]
        found.append(await place.post(chat_body(model="other"), headers=ORIGIN))
        elsewhere = await place.get("/v1/nothing", {"origin": "https://other.example"})
    assert [cors_of(answer) for answer in found] == [SAID] * 3
    assert cors_of(elsewhere) == {"access-control-allow-origin": "*", "vary": "Origin"}


async def test_own_errors_cannot_be_read_by_whom_servers_do_not_let() -> None:
    async with site({"N1": says(NO, 400, {"vary": "Origin"})}) as place:
        await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
        answer = await place.get("/v1/nothing", ORIGIN)
    assert (answer.status, cors_of(answer)) == (404, {"vary": "Origin"})


def test_of_many_sites_the_last_are_remembered() -> None:
    origins = Origins()
    for number in range(MOST_ORIGINS + 1):
        request = Request("OPTIONS", CHAT, b"", [(b"origin", b"%d" % number)], b"")
        origins.learn(request, [(b"access-control-allow-origin", b"*")])
    assert (origins.of(b"0"), origins.of(b"1") is None) == (None, False)


def test_what_is_too_long_to_be_a_site_is_not_remembered() -> None:
    origins, longest = Origins(), b"o" * LONGEST_ORIGIN
    for origin in (longest, longest + b"o"):
        origins.learn(Request("OPTIONS", CHAT, b"", [(b"origin", origin)], b""), [])
    assert (origins.of(longest) is None, origins.of(longest + b"o")) == (False, None)


async def test_own_errors_to_a_request_with_a_cookie_cannot() -> None:
    async with site({"N1": says()}) as place:
        answer = await place.get("/v1/nothing", ORIGIN | {"cookie": "sessionid=x"})
    assert (answer.status, cors_of(answer)) == (404, {})


async def test_cards_can_be_read_by_whom_their_servers_let() -> None:
    async with site({"N1": says(), "N2": says(headers={"vary": "Origin"}), "N3": lists()}) as place:

        async def asked(**models: str) -> dict[str, str]:
            table = {name: Deployment(name, name, (place.server(server),)) for name, server in models.items()}
            place.router.swap(Table(place.router.table.epoch + 1, MappingProxyType(table)))
            return cors_of(await place.get("/v1/models", ORIGIN))

        assert await asked(m="N1") == SAID
        assert await asked(m="N2") == {"vary": "Origin"}
        assert await asked(m="N1", other="N2") == {}
        await place["N3"].go_down()
        assert await asked(m="N1", other="N3") == SAID
        assert await asked(other="N3") == {"access-control-allow-origin": "*", "vary": "Origin"}


async def test_comments_wait_until_a_server_has_said_who_may_read() -> None:
    async def late(seen: Seen, wire: Wire) -> None:
        await asyncio.sleep(0.2)
        await says()(seen, wire)

    async with site({"N1": late}, Policy(comment_every_s=0.05)) as place:
        elsewhere = await place.post(chat_body(stream=True), headers=ORIGIN)
        here = await place.post(chat_body(stream=True), headers=ORIGIN | {"sec-fetch-site": "same-origin"})
    assert (cors_of(elsewhere), b": waiting" in elsewhere.body) == (SAID, False)
    assert b": waiting" in here.body


async def test_a_page_leaves_during_its_preflight() -> None:
    async with site({"N1": hangs}) as place:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
        async with asyncio.timeout(5):
            while [*place.router.active] or not place.nothing_is_held():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert place.records.all == []


async def test_an_app_in_a_browser_gets_what_the_engine_says() -> None:
    async with SimulatedServer(name="m") as engine, site({}) as place:
        place.publish(servers=[Server("N1", "N1", "plain", engine.url)])
        for method, path, body, headers in (
            ("OPTIONS", CHAT, None, PREFLIGHT),
            ("OPTIONS", "/v1/models", None, PREFLIGHT | {"access-control-request-method": "TRACE"}),
            ("GET", "/v1/models", None, ORIGIN),
            ("POST", CHAT, chat_body(max_tokens=1), ORIGIN),
            ("POST", CHAT, chat_body(max_tokens=1, stream=True), ORIGIN),
            ("POST", CHAT, chat_body(max_tokens=-1), ORIGIN),
            ("POST", CHAT, chat_body(model="other"), ORIGIN),
        ):
            ours, direct = [await ask(port, method, path, body, headers) for port in (place.port, engine.port)]
            assert (ours.status, cors_of(ours)) == (direct.status, cors_of(direct))
            if method == "OPTIONS":
                assert ours.body == direct.body
            else:
                assert cors_of(ours) == {"access-control-allow-origin": "*", "vary": "Origin"}
        preflight = await ask(place.port, "OPTIONS", CHAT, None, PREFLIGHT)
    assert preflight.headers["access-control-allow-methods"] == ", ".join(METHODS)
