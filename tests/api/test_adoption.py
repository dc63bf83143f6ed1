"""Adopting over REST: the same call as the page's, rehearsed, repeated, refused."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from console.accounts.models import AuditEntry, Role
from console.fleet import adoption
from console.fleet.models import Server
from console.fleet.states import ServerState
from console.launch.introduction import introduce
from tests.api.calls import Api
from tests.factories import make_deployment, make_server
from tests.sent import Sent, sent
from tests.simulator.harness import MODEL, NAME, SimulatedServer

__all__ = ["sent"]
pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedServer]:
    with SimulatedServer("plain") as server:
        yield server


@pytest.fixture
def body(engine: SimulatedServer) -> dict[str, str]:
    make_deployment("chat", served_model_name=NAME, model=MODEL)
    return {"deployment": "chat", "url": engine.url}


def test_a_server_is_adopted_and_shown_as_not_ours(body: dict[str, str], sent: Sent) -> None:
    answer = Api(Role.OPERATOR).post("/servers/adopt", {**body, "api_key": "very-secret"})
    assert answer.status == 201
    shown = {name: answer.body[name] for name in ("adopted", "host", "url", "state", "may_start", "may_stop")}
    assert shown == {
        "adopted": True,
        "host": "",
        "url": body["url"],
        "state": "verifying",
        "may_start": False,
        "may_stop": False,
    }
    assert answer.body["can_move_to"] == []
    assert "very-secret" not in str(answer.body)
    listed = Api(Role.VIEWER).get("/servers", deployment="chat")
    assert "very-secret" not in str(listed.body)


def test_a_rehearsal_asks_the_server_and_keeps_nothing(body: dict[str, str], sent: Sent) -> None:
    answer = Api(Role.OPERATOR).post("/servers/adopt", {**body, "dry_run": True})
    assert (answer.status, answer.body["name"]) == (201, "chat-1")
    assert not Server.objects.exists()
    assert not AuditEntry.objects.filter(action="server.adopt").exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("headers", [{}, {"Idempotency_Key": "k1"}])
def test_a_server_is_asked_before_the_transaction_begins(
    body: dict[str, str], sent: Sent, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    """A slow one would keep everybody else from writing."""
    in_transaction: list[bool] = []

    def listening(*args: Any) -> Any:
        in_transaction.append(connection.in_atomic_block)
        return introduce(*args)

    monkeypatch.setattr(adoption, "introduce", listening)
    assert Api(Role.OPERATOR).post("/servers/adopt", body, **headers).status == 201
    assert in_transaction == [False]


def test_a_viewer_makes_nobody_be_asked(body: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("it was asked")

    monkeypatch.setattr(adoption, "introduce", never)
    assert Api(Role.VIEWER).post("/servers/adopt", body).status == 403
    assert Api().post("/servers/adopt", body).status == 401


def test_the_same_key_adopts_once(body: dict[str, str], sent: Sent) -> None:
    olga = Api(Role.OPERATOR)
    answers = [olga.post("/servers/adopt", body, Idempotency_Key="k1") for _ in range(2)]
    assert [answer.status for answer in answers] == [201, 201]
    assert answers[0].body["id"] == answers[1].body["id"]
    assert Server.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"role": "decode"}, "role"),
        ({"name": "No!"}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_field(body: dict[str, str], change: dict[str, str], field: str) -> None:
    answer = Api(Role.OPERATOR).post("/servers/adopt", {**body, **change})
    assert (answer.status, answer.error["field"]) == (400, field)
    assert not Server.objects.exists()


def test_what_belongs_to_its_owner_is_a_conflict(body: dict[str, str], sent: Sent) -> None:
    olga = Api(Role.OPERATOR)
    number = olga.post("/servers/adopt", body).body["id"]
    for deed in ("start", "stop"):
        answer = olga.post(f"/servers/{number}/{deed}")
        assert (answer.status, "someone else started it" in answer.error["message"]) == (409, True)
    assert olga.post(f"/servers/{number}/move", {"role": "decode"}).status == 409
    assert olga.delete(f"/servers/{number}").status == 409
    for part in ("log", "command"):
        assert olga.get(f"/servers/{number}/{part}").status == 409


def test_letting_go(body: dict[str, str], sent: Sent) -> None:
    olga = Api(Role.OPERATOR)
    number = olga.post("/servers/adopt", body).body["id"]
    assert olga.post(f"/servers/{number}/let-go", {"dry_run": True}).body["draining"] is False
    Server.objects.update(state=ServerState.READY)
    assert olga.post(f"/servers/{number}/let-go").body == {"server": "chat-1", "draining": True}
    assert Server.objects.get().state == ServerState.DRAINING
    assert olga.post(f"/servers/{number}/let-go", {"force": True}).body["draining"] is False
    assert not Server.objects.exists()


def test_a_server_of_ours_is_not_let_go() -> None:
    assert Api(Role.OPERATOR).post(f"/servers/{make_server().pk}/let-go").status == 409
