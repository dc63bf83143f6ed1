"""The exact command of a server, its log, and what would keep one from starting."""

from collections.abc import Callable
from typing import Any

import pytest

from console.accounts.models import Role
from console.fleet.models import Host, Server
from console.fleet.states import ServerRole
from console.launch import remote
from console.launch.contracts import Check, LaunchSpec, LogTail
from tests.api.calls import Api
from tests.factories import make_deployment, make_host, make_server

pytestmark = pytest.mark.django_db


def test_before_the_first_start_the_command_is_what_it_would_be() -> None:
    deployment = make_deployment("chat", server_api_key="very secret", engine_env={"HF_TOKEN": "hidden too"})
    server = make_server(ServerRole.PREFILL, deployment=deployment)
    body = Api(Role.VIEWER).get(f"/servers/{server.pk}/command").body
    assert "--kv-transfer-config" in body["argv"]
    assert body["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert set(body["secret_env"]) == {"VLLM_API_KEY", "HF_TOKEN"}
    assert "very secret" not in str(body)
    assert "hidden too" not in str(body)


def test_after_a_start_the_command_is_the_one_that_was_sent() -> None:
    server, api = make_server(), Api(Role.OPERATOR)
    api.post(f"/servers/{server.pk}/start")
    server.refresh_from_db()
    body = api.get(f"/servers/{server.pk}/command").body
    assert (body["argv"], body["generation"]) == (server.launch_spec["argv"], 1)


def test_the_end_of_the_log_is_read_on_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def tail(server: Server, max_bytes: int) -> LogTail:
        return {"path": "/var/log/chat-1.log", "size_bytes": 900, "text": f"last {max_bytes} bytes", "truncated": True}

    monkeypatch.setattr(remote, "tail", tail)
    answer = Api(Role.VIEWER).get(f"/servers/{make_server().pk}/log", max_bytes=100)
    assert (answer.status, answer.body["text"], answer.body["truncated"]) == (200, "last 100 bytes", True)


def test_a_host_that_does_not_answer_is_unavailable(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TAIL_TIMEOUT_S", 0.1)
    answer = Api(Role.VIEWER).get(f"/servers/{make_server().pk}/log")
    assert (answer.status, answer.error["code"]) == (503, "unavailable")


@pytest.mark.parametrize("size", [0, 1_000_001, "all"])
def test_a_log_is_read_within_limits(size: Any) -> None:
    assert Api(Role.VIEWER).get(f"/servers/{make_server().pk}/log", max_bytes=size).error["field"] == "max_bytes"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def answer(*found: Check) -> None:
        def preflight(host: Host, spec: LaunchSpec) -> list[Check]:
            return list(found)

        monkeypatch.setattr(remote, "preflight", preflight)

    return answer


PORTS: Check = {"code": "ports", "title": "Ports", "result": "ok", "detail": "free", "instruction": ""}
NIXL: Check = {"code": "nixl", "title": "NIXL", "result": "failed", "detail": "missing", "instruction": "Install it."}
BODY = {"deployment": "chat", "host": "gpu01", "role": "decode", "gpu_indexes": [1]}


def test_a_preflight_tells_each_check_and_the_command(checks: Callable[..., None]) -> None:
    make_deployment("chat")
    make_host("gpu01")
    checks(PORTS, NIXL)
    answer = Api(Role.OPERATOR).post("/servers/preflight", BODY)
    assert (answer.status, answer.body["ok"], answer.body["checks"][-2:]) == (200, False, [PORTS, NIXL])
    assert "gpus_of_servers" in [check["code"] for check in answer.body["checks"]]
    assert "CUDA_VISIBLE_DEVICES=1" in answer.body["command"]["text"]
    assert not Server.objects.exists()


def test_a_preflight_without_a_failed_check_is_ok(checks: Callable[..., None]) -> None:
    make_deployment("chat")
    make_host("gpu01")
    checks(PORTS)
    assert Api(Role.OPERATOR).post("/servers/preflight", BODY).body["ok"] is True


def test_a_preflight_of_what_cannot_be_meant_is_refused() -> None:
    make_deployment("chat")
    make_host("gpu01")
    answer = Api(Role.OPERATOR).post("/servers/preflight", {**BODY, "gpu_indexes": [7]})
    assert (answer.status, answer.error["field"]) == (400, "gpu_indexes")
