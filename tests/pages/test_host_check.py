"""The check of a host on its own page: a result for each check, and what to do about it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.fleet.models import Deployment, Engine, Host, Server
from console.launch import remote
from console.launch.contracts import Check, LaunchSpec
from tests.pages.conftest import Fleet

PAGE = "/hosts/gpu01/check/"
REGION = {"HX-Request": "true"}
NIXL = Check(code="nixl", title="NIXL", result="failed", detail="NIXL is not installed.", instruction="Install it.")
DISK = Check(code="disk", title="Disk", result="ok", detail="9.0 GiB free.", instruction="")


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[LaunchSpec]]:
    """Answers with these checks; returns what it was asked about."""

    def answer(*checks: Check) -> list[LaunchSpec]:
        asked: list[LaunchSpec] = []

        def preflight(host: Host, spec: LaunchSpec) -> list[Check]:
            asked.append(spec)
            return list(checks)

        monkeypatch.setattr(remote, "preflight", preflight)
        return asked

    return answer


def of_chat(**fields: Any) -> dict[str, Any]:
    return {"deployment": "chat", "role": "decode", "gpu_indexes": ["3"], **fields}


def test_the_host_page_offers_the_check_and_asks_nobody_yet(fleet: Fleet, operator: Client) -> None:
    page = operator.get("/hosts/gpu01/").text
    assert f'hx-get="{PAGE}"' in page
    assert "check-results" not in page


def test_a_viewer_sees_no_check(fleet: Fleet, viewer: Client) -> None:
    assert PAGE not in viewer.get("/hosts/gpu01/").text


def test_each_check_tells_its_result_and_what_to_do(
    fleet: Fleet, operator: Client, agent: Callable[..., list[LaunchSpec]]
) -> None:
    agent(NIXL, DISK)
    answer = operator.get(PAGE, of_chat(), headers=REGION).text
    assert "1 thing would keep a server from starting." in answer
    for words in ("NIXL is not installed.", "Install it.", "9.0 GiB free.", "No other server holds them."):
        assert words in answer
    assert "<main" not in answer


def test_it_is_asked_for_the_chosen_deployment_role_and_gpus(
    fleet: Fleet, operator: Client, agent: Callable[..., list[LaunchSpec]]
) -> None:
    asked = agent(DISK)
    answer = operator.get(PAGE, of_chat()).text
    spec = asked[0]
    assert (spec["deployment"], spec["role"], spec["gpu_indexes"]) == ("chat", "decode", [3])
    assert "A server can start." in answer
    assert "<main" in answer  # without script it is a page of its own


def test_a_gpu_of_another_server_is_named(
    fleet: Fleet, operator: Client, agent: Callable[..., list[LaunchSpec]]
) -> None:
    agent(DISK)
    answer = operator.get(PAGE, of_chat(gpu_indexes=["0"]), headers=REGION).text
    assert "GPU 0 is held by chat-1, which is ready." in answer
    assert "Stop chat-1, or take another." in answer


def test_for_no_deployment_it_looks_at_vllm_and_at_the_free_gpus(
    fleet: Fleet, operator: Client, agent: Callable[..., list[LaunchSpec]]
) -> None:
    asked = agent(DISK)
    answer = operator.get(PAGE, {"deployment": ""}, headers=REGION).text
    assert (asked[0]["engine"], asked[0]["role"], asked[0]["gpu_indexes"]) == ("vllm", "prefill", [2, 3])
    assert "GPU 0 is held by chat-1; GPU 1 is held by chat-2." in answer


def test_a_bare_link_asks_for_the_deployment_that_has_a_server_there(
    fleet: Fleet, operator: Client, agent: Callable[..., list[LaunchSpec]]
) -> None:
    asked = agent(DISK)
    operator.get(PAGE)
    assert (asked[0]["deployment"], asked[0]["engine"], asked[0]["gpu_indexes"]) == ("chat", "simulated", [3])


def test_a_look_for_vllm_says_that_the_simulated_engine_needs_none(
    fleet: Fleet, operator: Client, agent: Callable[..., list[LaunchSpec]]
) -> None:
    agent(DISK)
    assert "needs neither vLLM nor NIXL" in operator.get(PAGE, {"deployment": ""}, headers=REGION).text
    assert "needs neither vLLM nor NIXL" not in operator.get(PAGE, of_chat(), headers=REGION).text
    Deployment.objects.update(engine=Engine.VLLM)
    assert "needs neither vLLM nor NIXL" not in operator.get(PAGE, {"deployment": ""}, headers=REGION).text


def test_with_every_gpu_taken_the_page_still_offers_one_to_ask_about(fleet: Fleet, operator: Client) -> None:
    Server.objects.filter(name="chat-1").update(gpu_indexes=[0, 2, 3])
    assert 'id="gpu-0" value="0" checked' in operator.get("/hosts/gpu01/").text


def test_a_host_without_a_free_gpu_says_how_to_make_room(
    fleet: Fleet, operator: Client, agent: Callable[..., list[LaunchSpec]]
) -> None:
    agent(DISK)
    Server.objects.filter(name="chat-1").update(gpu_indexes=[0, 2, 3])
    answer = operator.get(PAGE, {"deployment": ""}, headers=REGION).text
    assert "Stop or move one of them to make room for another server." in answer


def test_a_choice_that_cannot_be_meant_is_told(fleet: Fleet, operator: Client) -> None:
    answer = operator.get(PAGE, of_chat(gpu_indexes=[]), headers=REGION).text
    assert "Choose at least one GPU of host gpu01." in answer


def test_a_host_that_does_not_answer_is_told(fleet: Fleet, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.launch.remote.PREFLIGHT_TIMEOUT_S", 0.1)
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=1))
    answer = operator.get(PAGE, of_chat(), headers=REGION).text
    assert "Host gpu01 did not answer" in answer
    assert "Look whether its agent runs" in answer
