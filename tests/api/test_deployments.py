"""Deployments through the API."""

from typing import Any

import pytest

from console.accounts.models import AuditEntry, Role
from console.fleet.models import Deployment
from console.fleet.states import ServerState
from tests.api.calls import Api
from tests.factories import make_deployment, make_server

pytestmark = pytest.mark.django_db
NEW = {"name": "chat", "model": "/models/tiny", "engine": "simulated"}


def test_a_deployment_is_created_with_what_is_given_and_defaults() -> None:
    made = Api(Role.OPERATOR).post("/deployments", {**NEW, "short_prompt_tokens": 256, "gap_limit_ms": 50.0})
    assert (made.status, made.body["served_model_name"], made.body["short_prompt_tokens"]) == (201, "chat", 256)
    row = Deployment.objects.get()
    assert (row.gap_limit_ms, row.engine, row.when_no_pair) == (50.0, "simulated", "fallback")
    assert AuditEntry.objects.get().action == "deployment.create"


def test_its_servers_key_is_made_and_never_shown() -> None:
    made = Api(Role.ADMIN).post("/deployments", NEW)
    key = Deployment.objects.get().server_api_key
    assert key
    assert key not in str(made.body)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "Not A Name"}, "name"),
        ({"name": "code"}, "name"),
        ({"model": ""}, "model"),
        ({"served_model_name": "code"}, "served_model_name"),
        ({"engine": "tgi"}, "engine"),
        ({"plain_share_percent": 101}, "plain_share_percent"),
        ({"plain_share_percent": "half"}, "plain_share_percent"),
        ({"short_prompt_tokens": -1}, "short_prompt_tokens"),
        ({"short_prompt_tokens": 2**31}, "short_prompt_tokens"),
        ({"retries": 6}, "retries"),
        ({"wait_for_server_s": 601}, "wait_for_server_s"),
        ({"connect_s": 0}, "connect_s"),
        ({"first_byte_s": 86_401}, "first_byte_s"),
        ({"idle_s": "long"}, "idle_s"),
        ({"total_s": -1}, "total_s"),
        ({"comment_every_s": 0.5}, "comment_every_s"),
        ({"max_connections_per_server": 0}, "max_connections_per_server"),
        ({"max_connections_per_server": 1.5}, "max_connections_per_server"),
        ({"ttft_limit_ms": 0}, "ttft_limit_ms"),
        ({"engine": "simulated", "connector": "Nope"}, "connector"),
        ({"engine_args": "--max-model-len 100"}, "engine_args"),
        ({"engine_args": ["--port", "80"]}, "engine_args"),
        ({"engine_env": {"CUDA_VISIBLE_DEVICES": "0"}}, "engine_env"),
        ({"engine_env": {"A": 1}}, "engine_env.A"),
        ({"revision": 7}, "revision"),
    ],
)
def test_a_deployment_that_cannot_be_meant_is_not_created(change: dict[str, Any], field: str) -> None:
    make_deployment("code")
    answer = Api(Role.ADMIN).post("/deployments", {**NEW, **change})
    assert (answer.status, answer.error["field"]) == (400, field)
    assert Deployment.objects.count() == 1


@pytest.mark.parametrize("field", [{"engine_args": ["--enforce-eager"]}, {"engine_env": {"A": "1"}}])
def test_extra_arguments_are_for_admins(field: dict[str, Any]) -> None:
    assert Api(Role.OPERATOR).post("/deployments", {**NEW, **field}).status == 403
    assert Api(Role.ADMIN).post("/deployments", {**NEW, **field}).status == 201


def test_only_what_is_sent_changes() -> None:
    make_deployment("chat", short_prompt_tokens=64, retries=1)
    changed = Api(Role.OPERATOR).patch("/deployments/chat", {"retries": 4, "reason": "flaky network"})
    assert (changed.status, changed.body["retries"], changed.body["short_prompt_tokens"]) == (200, 4, 64)
    entry = AuditEntry.objects.get()
    assert (entry.before, entry.after, entry.reason) == ({"retries": 1}, {"retries": 4}, "flaky network")


def test_a_limit_is_taken_away_with_null() -> None:
    make_deployment("chat", gap_limit_ms=50)
    assert Api(Role.OPERATOR).patch("/deployments/chat", {"gap_limit_ms": None}).body["gap_limit_ms"] is None


def test_time_limits_are_the_routers_until_they_are_set() -> None:
    limits = {"connect_s": 1.5, "first_byte_s": 30, "idle_s": 60, "total_s": 600, "comment_every_s": 15}
    api = Api(Role.OPERATOR)
    made = api.post("/deployments", {**NEW, "idle_s": None}).body
    assert {made[name] for name in (*limits, "max_connections_per_server")} == {None}
    changed = api.patch("/deployments/chat", {**limits, "max_connections_per_server": 64}).body
    assert changed["revision"] == 1
    assert {name: changed[name] for name in limits} == limits
    assert api.get("/deployments/chat").body["max_connections_per_server"] == 64
    assert api.patch("/deployments/chat", {"idle_s": None}).body["idle_s"] is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"retries": None}, "retries"),
        ({"retries": 6}, "retries"),
        ({"name": ""}, "name"),
        ({"name": "code"}, "name"),
        ({"colour": "red"}, "colour"),
        ({"reason": "x" * 401}, "reason"),
    ],
)
def test_a_change_that_cannot_be_meant_changes_nothing(change: dict[str, Any], field: str) -> None:
    make_deployment("code")
    make_deployment("chat")
    answer = Api(Role.OPERATOR).patch("/deployments/chat", {"short_prompt_tokens": 5, **change})
    assert (answer.status, answer.error["field"]) == (400, field)
    assert Deployment.objects.get(name="chat").short_prompt_tokens == 0


def test_what_running_servers_rely_on_does_not_change() -> None:
    make_server(deployment=make_deployment("chat"), state=ServerState.READY)
    answer = Api(Role.ADMIN).patch("/deployments/chat", {"model": "/models/other"})
    assert (answer.status, answer.error["field"]) == (409, "model")


def test_a_secret_in_the_environment_is_masked_and_survives_being_sent_back() -> None:
    make_deployment("chat", engine_env={"HF_TOKEN": "secret", "LEVEL": "info"})
    api = Api(Role.ADMIN)
    shown = api.get("/deployments/chat").body["engine_env"]
    assert shown == {"HF_TOKEN": "***", "LEVEL": "info"}
    api.patch("/deployments/chat", {"engine_env": {**shown, "LEVEL": "debug"}})
    assert Deployment.objects.get().engine_env == {"HF_TOKEN": "secret", "LEVEL": "debug"}


def test_deployments_are_listed_with_their_servers_and_filtered() -> None:
    make_server(deployment=make_deployment("chat"), name="chat-1")
    api = Api(Role.VIEWER)
    (found,) = api.get("/deployments").body["items"]
    assert (found["name"], found["servers"][0]["name"]) == ("chat", "chat-1")
    assert api.get("/deployments", engine="vllm").body["count"] == 0
    assert api.get("/deployments", engine="tgi").error["field"] == "engine"


def test_a_deployment_is_deleted_with_its_servers_at_rest() -> None:
    make_server(deployment=make_deployment("chat"))
    api = Api(Role.ADMIN)
    assert api.delete("/deployments/chat?dry_run=true").body["deleted"] == "deployment chat"
    assert Deployment.objects.exists()
    assert api.delete("/deployments/chat").status == 200
    assert not Deployment.objects.exists()


def test_a_deployment_with_a_running_server_stays() -> None:
    make_server(deployment=make_deployment("chat"), state=ServerState.READY)
    assert Api(Role.ADMIN).delete("/deployments/chat").status == 409
    assert Deployment.objects.exists()


def test_an_operator_deletes_no_deployment() -> None:
    make_deployment("chat")
    assert Api(Role.OPERATOR).delete("/deployments/chat").status == 403
    assert Deployment.objects.exists()


def test_revisions_tell_what_changed_and_lead_back() -> None:
    ada = Api(Role.ADMIN)
    ada.post("/deployments", NEW)
    ada.patch("/deployments/chat", {"engine_args": ["--enforce-eager"], "engine_env": {"HF_TOKEN": "hidden"}})
    newest, first = ada.get("/deployments/chat/revisions").body["items"]
    assert (newest["number"], newest["settings"]["engine_args"]) == (2, ["--enforce-eager"])
    assert "hidden" not in str(newest)
    back = ada.post("/deployments/chat/roll-back", {"revision": first["number"]})
    assert (back.status, back.body["engine_args"], back.body["revision"]) == (200, [], 3)


def test_a_revision_that_never_was_is_not_found() -> None:
    make_deployment("chat")
    assert Api(Role.OPERATOR).post("/deployments/chat/roll-back", {"revision": 9}).status == 404


def test_a_clone_has_names_of_its_own_and_no_servers() -> None:
    make_server(deployment=make_deployment("chat", short_prompt_tokens=300))
    made = Api(Role.OPERATOR).post("/deployments/chat/clone", {"name": "chat-two"})
    assert (made.status, made.body["served_model_name"], made.body["servers"]) == (201, "chat-two", [])
    assert made.body["short_prompt_tokens"] == 300
