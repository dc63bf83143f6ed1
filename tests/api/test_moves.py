"""Moving servers between roles through the API."""

from typing import Any

import pytest

from console.accounts.models import AuditEntry, Role
from console.fleet.models import Move, Server
from console.fleet.states import ServerRole, ServerState
from tests.api.calls import Api
from tests.factories import make_deployment, make_host, make_move, make_server

pytestmark = pytest.mark.django_db
P, D = ServerRole.PREFILL, ServerRole.DECODE


@pytest.fixture
def servers() -> list[Server]:
    """Two prefill and two decode servers, all ready."""
    deployment, host = make_deployment("chat"), make_host("gpu01")
    return [
        make_server(role, ServerState.READY, deployment, host, name=f"chat-{number}", gpu_indexes=[number])
        for number, role in enumerate([P, P, D, D])
    ]


def failed_move(server: Server) -> Move:
    Server.objects.filter(pk=server.pk).update(state=ServerState.FAILED, role=D)
    return make_move(server, from_role=P, to_role=D)


def test_a_move_takes_the_server_out_of_traffic_and_answers_itself(servers: list[Server]) -> None:
    api = Api(Role.OPERATOR)
    answer = api.post(f"/servers/{servers[0].pk}/move", {"role": "decode", "reason": "long answers"})
    assert (answer.status, answer.body["status"], answer.body["to_role"]) == (202, "draining", "decode")
    assert answer.body["reason"] == "long answers"
    server = api.get(f"/servers/{servers[0].pk}").body
    assert (server["state"], server["move"]) == ("draining", answer.body["id"])
    assert api.get(f"/moves/{answer.body['id']}").body == answer.body


def test_a_move_can_be_rehearsed(servers: list[Server]) -> None:
    answer = Api(Role.OPERATOR).post(f"/servers/{servers[0].pk}/move", {"role": "decode", "dry_run": True})
    assert (answer.status, answer.body["status"]) == (202, "draining")
    assert not Move.objects.exists()
    servers[0].refresh_from_db()
    assert servers[0].state == "ready"


def test_a_second_move_of_the_deployment_is_a_conflict(servers: list[Server]) -> None:
    api = Api(Role.OPERATOR)
    api.post(f"/servers/{servers[0].pk}/move", {"role": "decode"})
    assert api.post(f"/servers/{servers[2].pk}/move", {"role": "prefill"}).status == 409
    assert Move.objects.count() == 1


@pytest.mark.parametrize("body", [{}, {"role": "router"}, {"role": None}, {"role": ["decode"]}, {"role": "prefill"}])
def test_a_move_that_cannot_be_meant_is_refused(servers: list[Server], body: dict[str, Any]) -> None:
    answer = Api(Role.OPERATOR).post(f"/servers/{servers[0].pk}/move", body)
    assert (answer.status, answer.error["field"]) == (400, "role")
    assert not Move.objects.exists()


def test_a_consequence_has_to_be_confirmed(servers: list[Server]) -> None:
    api, last = Api(Role.OPERATOR), servers[1]
    servers[0].delete()
    answer = api.post(f"/servers/{last.pk}/move", {"role": "decode"})
    assert (answer.status, answer.error["field"]) == (409, "confirmed")
    assert "last ready prefill server" in answer.error["message"]
    assert api.post(f"/servers/{last.pk}/move", {"role": "decode", "confirmed": True}).status == 202


def test_the_preview_tells_capacity_pairs_and_consequences(servers: list[Server]) -> None:
    preview = Api(Role.VIEWER).get(f"/servers/{servers[0].pk}/move-preview", role="decode").body
    assert preview["before"] == {"plain": 0, "prefill": 2, "decode": 2}
    assert preview["after"] == {"plain": 0, "prefill": 1, "decode": 3}
    assert len(preview["pairs_after"]) == 3
    assert (preview["refused"], preview["needs_confirmation"]) == ([], False)


def test_the_preview_says_why_a_move_is_refused(servers: list[Server]) -> None:
    preview = Api(Role.VIEWER).get(f"/servers/{servers[0].pk}/move-preview", role="prefill").body
    assert preview["refused"]


@pytest.mark.parametrize("query", [{}, {"role": "router"}])
def test_a_preview_needs_a_role(servers: list[Server], query: dict[str, str]) -> None:
    assert Api(Role.VIEWER).get(f"/servers/{servers[0].pk}/move-preview", **query).error["field"] == "role"


def test_a_draining_move_is_cancelled(servers: list[Server]) -> None:
    api = Api(Role.OPERATOR)
    move = api.post(f"/servers/{servers[0].pk}/move", {"role": "decode"}).body["id"]
    answer = api.post(f"/moves/{move}/cancel")
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    servers[0].refresh_from_db()
    assert servers[0].state == "ready"
    assert api.post(f"/moves/{move}/cancel").status == 409


def test_a_draining_move_can_be_forced(servers: list[Server]) -> None:
    api = Api(Role.OPERATOR)
    move = api.post(f"/servers/{servers[0].pk}/move", {"role": "decode"}).body["id"]
    answer = api.post(f"/moves/{move}/force", {"reason": "no time"})
    assert (answer.status, answer.body["status"]) == (202, "stopping")
    assert AuditEntry.objects.get(action="server.move_force").reason == "no time"


def test_a_failed_move_offers_its_ways_out(servers: list[Server]) -> None:
    move = failed_move(servers[0])
    assert Api(Role.VIEWER).get(f"/moves/{move.pk}").body["ways_out"] == ["retry", "back", "plain"]


@pytest.mark.parametrize(
    ("way", "body", "role"),
    [
        ("retry", None, "decode"),
        ("way-back", None, "prefill"),
        ("way-back", {"role": "before"}, "prefill"),
        ("way-back", {"role": "plain"}, "plain"),
    ],
)
def test_a_failed_move_is_left_by_each_way(servers: list[Server], way: str, body: Any, role: str) -> None:
    answer = Api(Role.OPERATOR).post(f"/moves/{failed_move(servers[0]).pk}/{way}", body)
    assert (answer.status, answer.body["to_role"], answer.body["status"]) == (202, role, "starting")
    servers[0].refresh_from_db()
    assert (servers[0].state, servers[0].role) == ("pending", role)


@pytest.mark.parametrize("way", ["retry", "way-back"])
def test_a_move_that_did_not_fail_has_no_way_out(servers: list[Server], way: str) -> None:
    api = Api(Role.OPERATOR)
    move = api.post(f"/servers/{servers[0].pk}/move", {"role": "decode"}).body["id"]
    assert api.post(f"/moves/{move}/{way}").status == 409


def test_a_way_back_to_nowhere_is_refused(servers: list[Server]) -> None:
    answer = Api(Role.OPERATOR).post(f"/moves/{failed_move(servers[0]).pk}/way-back", {"role": "decode"})
    assert (answer.status, answer.error["field"]) == (400, "role")


def test_moves_are_listed_newest_first_and_filtered(servers: list[Server]) -> None:
    api = Api(Role.OPERATOR)
    failed_move(servers[1])
    api.post(f"/servers/{servers[2].pk}/move", {"role": "prefill"})

    def statuses(**filters: Any) -> list[str]:
        return [item["status"] for item in api.get("/moves", **filters).body["items"]]

    assert statuses() == ["draining", "failed"]
    assert statuses(open="true") == ["draining"]
    assert statuses(open="false") == ["failed"]
    assert statuses(status="failed") == ["failed"]
    assert statuses(server=servers[2].pk) == ["draining"]
    assert statuses(deployment="chat") == ["draining", "failed"]


@pytest.mark.parametrize(
    ("name", "value"), [("deployment", "nothing"), ("status", "lost"), ("open", "perhaps"), ("server", "chat-1")]
)
def test_an_unknown_filter_value_is_refused(name: str, value: str) -> None:
    answer = Api(Role.VIEWER).get("/moves", **{name: value})
    assert (answer.status, answer.error["field"]) == (400, name)
