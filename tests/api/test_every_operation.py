"""What holds for each operation of the API alike: who is refused, and that a refusal leaves nothing behind."""

from typing import Any

import pytest
from django.core import serializers

from console.accounts.models import AuditEntry, InferenceKey, Role
from console.api.api import api
from console.fleet.models import Deployment, Host, Move, Pair, Server
from console.fleet.states import ServerRole, ServerState
from tests.api.calls import Answer, Api, Browser
from tests.factories import make_deployment, make_host, make_move, make_server

pytestmark = pytest.mark.django_db

CHANGES = {"POST", "PATCH", "DELETE"}
FOR_EVERYBODY = {"revoke_token"}
"""Changes that a viewer may make: taking back a token of one's own."""

Operation = tuple[str, str, str]


@pytest.fixture
def fleet() -> dict[str, str]:
    """One of each, and how paths name them."""
    host, deployment = make_host("gpu01"), make_deployment("chat")
    server = make_server(ServerRole.PREFILL, ServerState.READY, deployment, host)
    move = make_move(server)
    decode = make_server(ServerRole.DECODE, ServerState.LOADING, deployment, host)
    pair = Pair.objects.create(prefill=server, decode=decode, prefill_generation=1, decode_generation=1)
    key, _ = InferenceKey.issue(deployment.pk, "laptop")
    return {
        "server_id": str(server.pk),
        "move_id": str(move.pk),
        "pair_id": str(pair.pk),
        "key_id": str(key.pk),
        "request_id": "r1",
    }


def operations() -> list[Operation]:
    paths = api.get_openapi_schema(path_prefix="/api/")["paths"]
    return [
        (method.upper(), path.removeprefix("/api"), operation["operationId"])
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


def call(caller: Api, operation: Operation, fleet: dict[str, str], body: Any = None) -> Answer:
    method, path, _ = operation
    names = {"name": "gpu01" if path.startswith("/hosts") else "chat", "token_id": "1", **fleet}
    return caller.call(method, path.format(**names), body)


def everything() -> str:
    kinds = (Host, Deployment, Server, Move, InferenceKey, AuditEntry)
    return str(serializers.serialize("json", [row for kind in kinds for row in kind._default_manager.all()]))


def test_nobody_gets_in_without_login(fleet: dict[str, str]) -> None:
    nobody = Api()
    before = everything()
    for operation in operations():
        answer = call(nobody, operation, fleet)
        assert (answer.status, answer.error["code"]) == (401, "not_logged_in"), operation
    assert everything() == before


def test_a_viewer_changes_nothing(fleet: dict[str, str]) -> None:
    vera = Api(Role.VIEWER)
    before = everything()
    for operation in operations():
        if operation[0] in CHANGES and operation[2] not in FOR_EVERYBODY:
            answer = call(vera, operation, fleet, {})
            assert (answer.status, answer.error["code"]) == (403, "forbidden"), operation
    assert everything() == before


def test_a_session_without_csrf_token_changes_nothing(fleet: dict[str, str]) -> None:
    ada = Browser(Role.ADMIN)
    before = everything()
    for operation in operations():
        if operation[0] in CHANGES:
            answer = call(ada, operation, fleet, {})
            assert (answer.status, answer.error["code"]) == (403, "csrf"), operation
    assert everything() == before


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b'{"colour": "red"}', b"[" * 100_000, b'{"dry_run": 1}'])
def test_a_body_that_cannot_be_meant_changes_nothing(fleet: dict[str, str], body: bytes) -> None:
    ada = Api(Role.ADMIN)
    before = everything()
    for operation in operations():
        if operation[0] in {"POST", "PATCH"}:
            assert call(ada, operation, fleet, body).status == 400, operation
    assert everything() == before


def test_what_does_not_exist_is_not_found(fleet: dict[str, str]) -> None:
    missing = dict.fromkeys(
        ("name", "server_id", "move_id", "pair_id", "key_id", "token_id", "request_id"), "987654321"
    )
    for method, path, name in operations():
        if "{" in path:
            answer = Api(Role.ADMIN).call(method, path.format(**missing), BODIES.get(name), query=QUERIES.get(name))
            assert (answer.status, answer.error["code"]) == (404, "not_found"), path


BODIES = {
    "set_maintenance": {"on": True},
    "revoke_host": {},
    "update_deployment": {"retries": 1},
    "make_key": {"name": "laptop"},
    "move_server": {"role": "plain"},
    "roll_back": {"revision": 1},
    "clone_deployment": {"name": "another"},
}
ASKS_FOR_MORE = {"list_join_tokens", "preview_move", "read_log", "get_request"}
QUERIES = {"preview_move": {"role": "plain"}}


def test_a_viewer_reads_everything_but_join_tokens(fleet: dict[str, str]) -> None:
    vera = Api(Role.VIEWER)
    for operation in operations():
        if operation[0] == "GET" and operation[2] not in ASKS_FOR_MORE:
            assert call(vera, operation, fleet).status == 200, operation


def test_an_unknown_parameter_is_refused_everywhere(fleet: dict[str, str]) -> None:
    ada = Api(Role.ADMIN)
    for method, path, name in operations():
        names = {"name": "chat", "token_id": "1", **fleet}
        answer = ada.call(method, path.format(**names), BODIES.get(name, {}), query={"colour": "red"})
        assert (answer.status, answer.error["field"]) == (400, "colour"), path
