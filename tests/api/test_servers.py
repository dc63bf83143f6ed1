"""Servers through the API: what they are, adding, starting, stopping and deleting them."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.accounts.models import AuditEntry, Role
from console.fleet.models import Server
from console.fleet.states import ServerRole, ServerState
from tests.api.calls import Api
from tests.factories import make_deployment, make_host, make_server

pytestmark = pytest.mark.django_db


def test_a_server_says_what_it_is() -> None:
    deployment, host = make_deployment("chat"), make_host("gpu01")
    server = make_server(ServerRole.DECODE, ServerState.READY, deployment, host, name="chat-1", api_port=21000)
    body = Api(Role.VIEWER).get(f"/servers/{server.pk}").body
    expected = {
        "id": server.pk,
        "name": "chat-1",
        "host": "gpu01",
        "deployment": "chat",
        "role": "decode",
        "state": "ready",
        "state_text": "Ready",
        "url": "http://127.0.0.1:21000",
        "generation": 1,
        "gpu_indexes": [0],
        "inflight": 0,
        "failure": None,
        "move": None,
        "can_move_to": ["plain", "prefill"],
        "command": "",
    }
    assert {name: body[name] for name in expected} == expected


def test_a_server_whose_gpu_another_holds_says_so_and_may_not_start() -> None:
    deployment, host = make_deployment("chat"), make_host("gpu01")
    make_server(ServerRole.DECODE, ServerState.READY, deployment, host, name="chat-1")
    waits = make_server(ServerRole.PREFILL, ServerState.STOPPED, deployment, host, name="chat-2")
    free = make_server(ServerRole.PREFILL, ServerState.STOPPED, deployment, host, name="chat-3", gpu_indexes=[1])
    api = Api(Role.OPERATOR)
    shown = {item["name"]: (item["may_start"], item["notes"]) for item in api.get("/servers").body["items"]}
    # As its page says it.
    words = (
        "GPU 0 of gpu01 is held by chat-1, which is ready. "
        "Stop chat-1, or delete chat-2 and add a server on other GPUs."
    )
    assert shown == {"chat-1": (False, []), "chat-2": (False, [words]), "chat-3": (True, [])}
    assert api.get(f"/servers/{waits.pk}").body["notes"] == [words]
    assert api.post(f"/servers/{waits.pk}/start").error["message"] == words
    assert api.get(f"/servers/{free.pk}").body["may_start"] is True


def test_a_list_of_servers_takes_as_many_queries_as_one(django_assert_max_num_queries: Any) -> None:
    deployment, host, api = make_deployment("chat"), make_host("gpu01"), Api(Role.VIEWER)
    make_server(ServerRole.PLAIN, ServerState.STOPPED, deployment, host)
    with CaptureQueriesContext(connection) as one:
        api.get("/servers")
    for _ in range(5):
        make_server(ServerRole.PLAIN, ServerState.STOPPED, deployment, host)
    with django_assert_max_num_queries(len(one)):
        assert len(api.get("/servers").body["items"]) == 6


def test_a_failure_is_told_with_its_instruction() -> None:
    failure = {"code": "nixl_missing", "message": "NIXL is not available.", "instruction": "Install it beside vLLM."}
    server = make_server(state=ServerState.FAILED, failure=failure)
    assert Api(Role.VIEWER).get(f"/servers/{server.pk}").body["failure"] == {**failure, "line": ""}


def test_servers_are_listed_and_filtered() -> None:
    chat, code, host = make_deployment("chat"), make_deployment("code"), make_host("gpu01")
    make_server(ServerRole.PREFILL, ServerState.READY, chat, host, name="p1")
    make_server(ServerRole.DECODE, ServerState.READY, chat, host, name="d1", gpu_indexes=[1])
    make_server(ServerRole.PLAIN, ServerState.STOPPED, code, make_host("gpu02"), name="x1")

    def names(**filters: str) -> list[str]:
        return [item["name"] for item in Api(Role.VIEWER).get("/servers", **filters).body["items"]]

    assert names() == ["d1", "p1", "x1"]
    assert names(deployment="chat") == ["d1", "p1"]
    assert names(host="gpu02") == ["x1"]
    assert names(role="prefill") == ["p1"]
    assert names(state="stopped", deployment="code") == ["x1"]


@pytest.mark.parametrize(
    ("name", "value"), [("deployment", "nothing"), ("host", "gpu99"), ("role", "router"), ("state", "asleep")]
)
def test_an_unknown_filter_value_is_refused_and_named(name: str, value: str) -> None:
    answer = Api(Role.VIEWER).get("/servers", **{name: value})
    assert (answer.status, answer.error["field"]) == (400, name)


def test_a_server_is_added_stopped() -> None:
    make_deployment("chat")
    make_host("gpu01")
    body = {"deployment": "chat", "host": "gpu01", "role": "prefill", "gpu_indexes": [2]}
    added = Api(Role.OPERATOR).post("/servers", body)
    assert (added.status, added.body["state"], added.body["gpu_indexes"]) == (201, "stopped", [2])
    assert Server.objects.get().name == added.body["name"]


def test_a_server_can_be_added_and_started_at_once() -> None:
    make_deployment("chat")
    make_host("gpu01")
    body = {"deployment": "chat", "host": "gpu01", "role": "plain", "gpu_indexes": [0], "name": "chat-x", "start": True}
    added = Api(Role.OPERATOR).post("/servers", body)
    assert (added.status, added.body["state"], added.body["generation"]) == (201, "pending", 1)
    assert "--served-model-name chat" in added.body["command"]


def test_a_server_that_cannot_start_at_once_is_not_added() -> None:
    make_deployment("chat")
    make_host("gpu01", maintenance=True)
    body = {"deployment": "chat", "host": "gpu01", "role": "plain", "gpu_indexes": [0], "start": True}
    assert Api(Role.OPERATOR).post("/servers", body).status == 409
    assert not Server.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"deployment": "nothing"}, "deployment"),
        ({"host": "gpu99"}, "host"),
        ({"role": "router"}, "role"),
        ({"gpu_indexes": [9]}, "gpu_indexes"),
        ({"gpu_indexes": [0, 0]}, "gpu_indexes"),
        ({"gpu_indexes": []}, "gpu_indexes"),
        ({"gpu_indexes": [-1]}, "gpu_indexes.0"),
        ({"gpu_indexes": "0"}, "gpu_indexes"),
        ({"name": "Not A Name"}, "name"),
        ({"name": "x" * 64}, "name"),
    ],
)
def test_a_server_that_cannot_be_meant_is_not_added(change: dict[str, Any], field: str) -> None:
    make_deployment("chat")
    make_host("gpu01")
    body = {"deployment": "chat", "host": "gpu01", "role": "plain", "gpu_indexes": [0], **change}
    answer = Api(Role.OPERATOR).post("/servers", body)
    assert (answer.status, answer.error["field"]) == (400, field)
    assert not Server.objects.exists()


def test_starting_asks_the_host_and_leaves_a_trace() -> None:
    server = make_server(deployment=make_deployment("chat"))
    started = Api(Role.OPERATOR).post(f"/servers/{server.pk}/start", {"reason": "more load"})
    assert (started.status, started.body["state"], started.body["generation"]) == (202, "pending", 1)
    assert AuditEntry.objects.get().reason == "more load"


def test_starting_needs_no_body() -> None:
    assert Api(Role.OPERATOR).post(f"/servers/{make_server().pk}/start").status == 202


def test_a_second_start_is_a_conflict() -> None:
    server, api = make_server(), Api(Role.OPERATOR)
    api.post(f"/servers/{server.pk}/start")
    answer = api.post(f"/servers/{server.pk}/start")
    assert (answer.status, answer.error["code"]) == (409, "conflict")
    server.refresh_from_db()
    assert server.generation == 1


@pytest.mark.parametrize("state", [ServerState.STOPPING, ServerState.DRAINING, ServerState.READY])
def test_a_start_at_the_wrong_time_is_a_conflict(state: ServerState) -> None:
    server = make_server(state=state)
    assert Api(Role.OPERATOR).post(f"/servers/{server.pk}/start").status == 409
    server.refresh_from_db()
    assert server.state == state


def test_a_start_can_be_rehearsed() -> None:
    server = make_server(deployment=make_deployment("chat"))
    rehearsed = Api(Role.OPERATOR).post(f"/servers/{server.pk}/start", {"dry_run": True})
    assert (rehearsed.status, rehearsed.body["state"]) == (202, "pending")
    assert "--port" in rehearsed.body["command"]
    server.refresh_from_db()
    assert (server.state, server.generation) == ("stopped", 0)
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_starts_at_once_one_wins() -> None:
    server, api = make_server(), Api(Role.OPERATOR)
    statuses: list[int] = []
    together = threading.Barrier(2)

    def start() -> None:
        together.wait()
        statuses.append(api.post(f"/servers/{server.pk}/start").status)
        connection.close()

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [202, 409]
    server.refresh_from_db()
    assert server.generation == 1


def test_stopping_drains_first() -> None:
    server = make_server(state=ServerState.READY)
    stopped = Api(Role.OPERATOR).post(f"/servers/{server.pk}/stop", {"reason": "night"})
    assert (stopped.status, stopped.body["state"]) == (202, "draining")


@pytest.mark.parametrize("rehearsed", [True, False])
def test_stopping_the_last_server_of_a_role_says_what_traffic_will_see(rehearsed: bool) -> None:
    deployment = make_deployment()
    prefill = make_server(ServerRole.PREFILL, ServerState.READY, deployment)
    make_server(ServerRole.DECODE, ServerState.READY, deployment)
    answer = Api(Role.OPERATOR).post(f"/servers/{prefill.pk}/stop", {"dry_run": rehearsed})
    assert answer.status == 202
    [note] = answer.body["notes"]
    assert note.startswith("It is the last ready prefill server: no request can be split.")
    prefill.refresh_from_db()
    assert prefill.state == ("ready" if rehearsed else "draining")


def test_stopping_one_of_several_has_nothing_to_say() -> None:
    deployment = make_deployment()
    server, _ = (make_server(state=ServerState.READY, deployment=deployment) for _ in range(2))
    assert Api(Role.OPERATOR).post(f"/servers/{server.pk}/stop").body["notes"] == []


def test_a_stop_can_be_forced() -> None:
    server = make_server(state=ServerState.READY)
    assert Api(Role.OPERATOR).post(f"/servers/{server.pk}/stop", {"force": True}).body["state"] == "stopping"


def test_a_stop_can_be_taken_back_while_it_drains() -> None:
    server, api = make_server(state=ServerState.READY), Api(Role.OPERATOR)
    assert api.post(f"/servers/{server.pk}/cancel-stop").status == 409
    api.post(f"/servers/{server.pk}/stop")
    taken_back = api.post(f"/servers/{server.pk}/cancel-stop")
    assert (taken_back.status, taken_back.body["state"]) == (200, "ready")


def test_stopping_what_is_stopped_is_a_conflict() -> None:
    assert Api(Role.OPERATOR).post(f"/servers/{make_server().pk}/stop").status == 409


def test_a_server_at_rest_is_deleted() -> None:
    server = make_server(name="chat-1")
    deleted = Api(Role.OPERATOR).delete(f"/servers/{server.pk}")
    assert (deleted.status, deleted.body) == (200, {"deleted": "server chat-1"})
    assert not Server.objects.exists()


def test_a_running_server_is_not_deleted() -> None:
    server = make_server(state=ServerState.READY)
    assert Api(Role.OPERATOR).delete(f"/servers/{server.pk}").status == 409
    assert Server.objects.exists()


def test_deleting_can_be_rehearsed() -> None:
    server = make_server(name="chat-1")
    rehearsed = Api(Role.OPERATOR).delete(f"/servers/{server.pk}?dry_run=true")
    assert rehearsed.body == {"dry_run": True, "deleted": "server chat-1"}
    assert Server.objects.exists()


def test_a_host_that_does_not_report_starts_nothing() -> None:
    host = make_host(last_seen_at=timezone.now() - timedelta(minutes=5))
    server = make_server(host=host)
    assert Api(Role.OPERATOR).post(f"/servers/{server.pk}/start").status == 409
