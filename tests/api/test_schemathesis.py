"""Generated requests, sensible and absurd, for every operation: no fault, and no answer that is not declared."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, settings

from console.accounts.models import ApiToken, InferenceKey, Role
from console.api.api import api
from console.fleet.models import Host, Server
from console.fleet.states import ServerRole, ServerState
from console.launch import remote
from console.launch.contracts import Check, LaunchSpec, LogTail
from tests.factories import make_deployment, make_host, make_move, make_server, make_user

EXAMPLES = 6
NOT_HELD = [schemathesis.checks.positive_data_acceptance]
"""What the description allows the domain may still refuse: it knows which names are taken and what an engine takes."""
pytestmark = pytest.mark.django_db
MENDED = schemathesis.checks.negative_data_rejection
"""Where a path is set right after generation, the request may be absurd no longer."""

schema = schemathesis.openapi.from_dict(json.loads(json.dumps(api.get_openapi_schema(path_prefix="/api/"))))
schema.app = get_wsgi_application()
generously = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def answering_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not answer is a rightful 503, which would look like a fault here."""

    def tail(server: Server, max_bytes: int) -> LogTail:
        return {"path": "/log", "size_bytes": 3, "text": "log", "truncated": False}

    def preflight(host: Host, spec: LaunchSpec) -> list[Check]:
        return [{"code": "ports", "title": "Ports", "result": "ok", "detail": "", "instruction": ""}]

    monkeypatch.setattr(remote, "tail", tail)
    monkeypatch.setattr(remote, "preflight", preflight)


@pytest.fixture(autouse=True)
def one_connection() -> Iterator[None]:
    """The application closes its connection after each request, and with it the test's transaction would be gone."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def login() -> dict[str, str]:
    _, plain = ApiToken.issue(make_user(Role.ADMIN), "tests", Role.ADMIN)
    return {"Authorization": f"Bearer {plain}"}


@pytest.fixture
def known() -> dict[str, Any]:
    """One of each thing that a path can name."""
    host, deployment = make_host("gpu01"), make_deployment("gpu01")
    server = make_server(ServerRole.PREFILL, ServerState.READY, deployment, host)
    move = make_move(server)
    key, _ = InferenceKey.issue(deployment.pk, "laptop")
    return {"name": "gpu01", "server_id": server.pk, "move_id": move.pk, "key_id": key.pk}


@schema.parametrize()
@generously
def test_whatever_is_asked_the_answer_is_declared(case: schemathesis.Case[Any], login: dict[str, str]) -> None:
    case.call_and_validate(headers=login, excluded_checks=NOT_HELD)


@schema.include(path_regex="{").parametrize()
@generously
def test_whatever_is_asked_of_what_exists_the_answer_is_declared(
    case: schemathesis.Case[Any], login: dict[str, str], known: dict[str, Any]
) -> None:
    case.path_parameters.update({name: known[name] for name in case.path_parameters if name in known})
    case.call_and_validate(headers=login, excluded_checks=[*NOT_HELD, MENDED])
