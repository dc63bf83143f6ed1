"""One request from the client's socket to the charts and the database, through real processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import redis
from django.db import OperationalError
from django.test import Client

from console.accounts import keys
from console.accounts.models import Role
from console.accounts.people import COMMAND_LINE
from console.fleet.forms import DeploymentForm
from console.fleet.models import Deployment
from console.fleet.states import ServerState
from console.gateway import publish, sync
from console.gateway.models import Epoch
from console.traffic import queries, tasks, wire
from console.traffic.models import RequestRecord
from tests.factories import make_user
from tests.gateway.engines import completion, deploy, register, verify
from tests.simulator.harness import SimulatedServer
from tests.waiting import wait_until
from tests.web import BACKEND, RunningWeb, Watched, receive

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def plain() -> Iterator[SimulatedServer]:
    with SimulatedServer("plain") as engine:
        yield engine


@pytest.fixture(scope="module")
def split() -> Iterator[tuple[SimulatedServer, SimulatedServer]]:
    with SimulatedServer("prefill") as prefill, SimulatedServer("decode") as decode:
        yield prefill, decode


@pytest.fixture
def deployment(valkey: "redis.Redis", transactional_db: None) -> Deployment:
    return deploy()


@pytest.fixture
def web(deployment: Deployment) -> Iterator[RunningWeb]:
    with RunningWeb() as running:
        yield running


def on_every_router(web: RunningWeb) -> None:
    """Waits until what was changed is routed."""
    epoch = publish.changed()
    wait_until(lambda: web.services.sync.epoch >= epoch, "the new table is served")


@contextmanager
def watch(web: RunningWeb) -> Iterator[Watched]:
    with web.socket("chat", make_user(Role.VIEWER)) as connection:
        assert receive(connection)["type"] == "snapshot"
        yield Watched(connection)


def stored(valkey: "redis.Redis", request_id: str) -> RequestRecord:
    wait_until(lambda: int(valkey.xlen(wire.stream())) > 0, "the record is in the stream")
    tasks.take_records()
    return RequestRecord.objects.get(request_id=request_id)


def test_a_streamed_request_is_seen_live_and_stored_with_the_same_figures(
    valkey: "redis.Redis", web: RunningWeb, deployment: Deployment, plain: SimulatedServer
) -> None:
    server = register(plain, deployment, "plain-1")
    on_every_router(web)
    with watch(web) as watched:
        answer = web.client.post("/v1/completions", json=completion(tokens=30))
        request_id = answer.headers["x-request-id"]
        dot = watched.event({"type": "ttft"})
        gaps = watched.event({"type": "gaps"})
        row = watched.event({"type": "request"})["request"]
    assert (dot["request_id"], dot["decode"], dot["route"]) == (request_id, "plain-1", "plain")
    assert (gaps["server"], gaps["role"]) == ("plain-1", "plain")
    assert (row["request_id"], row["outcome"], row["completion_tokens"]) == (request_id, "ok", 30)
    record = stored(valkey, request_id)
    assert (record.deployment, record.decode_server_id) == (deployment, server.pk)
    assert queries.request_row(record) == row


def test_a_split_request_names_both_servers_and_marks_its_long_prompt(
    valkey: "redis.Redis",
    web: RunningWeb,
    deployment: Deployment,
    split: tuple[SimulatedServer, SimulatedServer],
    settings: Any,
) -> None:
    settings.LONG_PROMPT_TOKENS = 50
    verify(register(split[0], deployment, "prefill-1"), register(split[1], deployment, "decode-1"))
    on_every_router(web)
    with watch(web) as watched:
        answer = web.client.post("/v1/completions", json=completion("word " * 400))
        mark = watched.event({"type": "long_prompt"})
    assert mark["server"] == "prefill-1"
    record = stored(valkey, answer.headers["x-request-id"])
    assert (record.route, record.prefill_server, record.decode_server) == ("split", "prefill-1", "decode-1")
    parts = (record.chosen_ms, record.prefill_answered_ms, record.first_token_ms)
    assert None not in parts
    assert list(parts) == sorted(part for part in parts if part is not None)


def test_an_adapter_that_is_loaded_while_its_server_runs_is_listed_and_served_at_once(
    web: RunningWeb, deployment: Deployment, plain: SimulatedServer
) -> None:
    register(plain, deployment, "plain-1")
    with SimulatedServer("plain", env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}) as other:
        register(other, deployment, "plain-2")
        on_every_router(web)
        assert web.client.post("/v1/completions", json=completion(model="late")).status_code == 404
        load = {"lora_name": "late", "lora_path": "/late"}
        assert httpx.post(f"{other.url}/v1/load_lora_adapter", json=load).status_code == 200
        assert "late" in [card["id"] for card in web.client.get("/v1/models").json()["data"]]
        answer = web.client.post("/v1/completions", json=completion(model="late", stream=False))
    assert (answer.status_code, answer.json()["model"]) == (200, "late")
    assert answer.headers["x-switchyard-decode"] == "plain-2"


@pytest.mark.parametrize(("path", "answers"), [("/version", '{"version":"0.31.0"}'), ("/ping", ""), ("/load", "{")])
def test_what_engines_tell_of_themselves_is_told_and_is_no_request(
    valkey: "redis.Redis", web: RunningWeb, deployment: Deployment, plain: SimulatedServer, path: str, answers: str
) -> None:
    register(plain, deployment, "plain-1")
    on_every_router(web)
    answer = web.client.get(path)
    assert answer.status_code == 200
    assert answer.text.startswith(answers)
    record = web.client.post("/v1/completions", json=completion(stream=False)).headers["x-request-id"]
    assert stored(valkey, record).path == "/v1/completions"
    assert RequestRecord.objects.count() == 1


def test_a_request_that_is_not_streamed_has_no_dot_and_no_ttft(
    valkey: "redis.Redis", web: RunningWeb, deployment: Deployment, plain: SimulatedServer
) -> None:
    register(plain, deployment, "plain-1")
    on_every_router(web)
    with watch(web) as watched:
        answer = web.client.post("/v1/completions", json=completion(stream=False))
        row = watched.event({"type": "request"})["request"]
    assert (row["streamed"], row["ttft_ms"]) == (False, None)
    assert stored(valkey, answer.headers["x-request-id"]).first_token_ms is None


def test_a_card_shows_how_many_requests_are_on_its_server(
    web: RunningWeb, deployment: Deployment, plain: SimulatedServer
) -> None:
    server = register(plain, deployment, "plain-1")
    on_every_router(web)
    body = completion(tokens=30_000)  # Lasts longer than it takes to see it.
    with watch(web) as watched, web.client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        assert watched.event({"type": "load", "inflight": 1})["id"] == server.pk


def test_a_draining_server_keeps_its_stream_and_gets_nothing_new(
    web: RunningWeb, deployment: Deployment, plain: SimulatedServer
) -> None:
    server = register(plain, deployment, "plain-1")
    on_every_router(web)
    with web.client.stream("POST", "/v1/completions", json=completion(tokens=100)) as answer:
        server.transition(ServerState.DRAINING)
        wait_until(lambda: web.services.sync.epoch >= (server.drain_epoch or 0), "the router knows of the drain")
        assert web.client.post("/v1/completions", json=completion()).status_code == 503
        assert "data: [DONE]" in answer.read().decode()


def save_on_the_page(deployment: Deployment, **fields: str) -> None:
    person = Client()
    person.force_login(make_user(Role.OPERATOR), backend=BACKEND)
    shown = DeploymentForm(deployment=deployment, admin=False).initial
    typed = {name: value for name, value in shown.items() if value is not None and value is not False}
    answer = person.post(f"/deployments/{deployment.name}/edit/", {**typed, **fields})
    assert answer.status_code == 302


def test_a_limit_set_on_the_page_holds_at_a_running_router(
    web: RunningWeb, deployment: Deployment, plain: SimulatedServer
) -> None:
    register(plain, deployment, "plain-1")
    on_every_router(web)
    assert web.client.post("/v1/completions", json=completion(stream=False)).status_code == 200
    save_on_the_page(deployment, total_s="0.2")
    wait_until(lambda: web.services.sync.epoch >= Epoch.current(), "the new limit is served")
    answer = web.client.post("/v1/completions", json=completion(tokens=30_000, stream=False))
    assert answer.status_code == 504
    assert "within the total limit of 0.2 s" in answer.json()["error"]["message"]


@pytest.fixture
def slow_to_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers look by themselves once an hour, and nudges do not reach them."""
    monkeypatch.setattr(sync, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(publish, "nudge", lambda epoch: None)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models"])
def test_a_key_opens_its_deployment_as_soon_as_it_is_made(
    slow_to_hear: None, deployment: Deployment, plain: SimulatedServer, path: str
) -> None:
    register(plain, deployment, "plain-1")
    Deployment.objects.update(require_key=True)
    with RunningWeb() as web:
        method, body = ("GET", None) if path == "/v1/models" else ("POST", completion())
        for _ in range(3):
            assert web.client.request(method, path, json=body).status_code == 401
            _, key = keys.issue(COMMAND_LINE, deployment.pk, "client")
            headers = {"Authorization": f"Bearer {key}"}
            assert web.client.request(method, path, json=body, headers=headers).status_code == 200


def test_a_model_is_found_as_soon_as_it_is_served(
    valkey: "redis.Redis", slow_to_hear: None, plain: SimulatedServer
) -> None:
    with RunningWeb() as web:
        assert web.client.post("/v1/completions", json=completion()).status_code == 503
        register(plain, deploy(), "plain-1")
        publish.changed()
        assert web.client.post("/v1/completions", json=completion()).status_code == 200


def test_what_is_not_known_is_refused_at_once_while_the_database_is_away(
    web: RunningWeb, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(sync, "_load_if_changed", away)
    monkeypatch.setattr(sync, "CATCH_UP_LIMIT_S", 3600.0)
    for _ in range(3):
        assert web.client.post("/v1/completions", json=completion(model="another")).status_code == 404
