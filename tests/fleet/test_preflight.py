"""What the console itself knows to stand in the way of a start."""

from typing import Any

import pytest

from console.fleet import actions, preflight
from console.fleet.models import Deployment, Host
from console.fleet.states import ServerRole, ServerState
from tests.factories import make_deployment, make_host, make_server
from tests.observations import make_inventory

pytestmark = pytest.mark.django_db
R, S = ServerRole, ServerState


def checks(deployment: Deployment, host: Host, role: str = "prefill") -> dict[str, tuple[str, str]]:
    """Result and detail by code."""
    spec = actions.launch_preview(deployment, host, role, [0])
    return {check["code"]: (check["result"], check["detail"]) for check in preflight.here(deployment, host, spec)}


def make_machine(name: str, address: str, **fields: Any) -> Host:
    return make_host(name, address=address, inventory={**make_inventory(), "hostname": name}, **fields)


def test_a_free_host_has_nothing_in_the_way() -> None:
    found = checks(make_deployment(), make_host())
    assert {result for result, _ in found.values()} == {"ok"}
    assert "no ready decode server" in found["pairs"][1]


def test_maintenance_is_in_the_way() -> None:
    assert checks(make_deployment(), make_host(maintenance=True))["maintenance"][0] == "failed"


def test_a_gpu_of_another_server_is_in_the_way() -> None:
    host = make_host()
    other = make_server(host=host, state=S.LOADING, gpu_indexes=[0])
    assert checks(make_deployment(), host)["gpus_of_servers"] == (
        "failed",
        f"GPU 0 is held by {other.name}, which is loading.",
    )


def test_a_loopback_address_is_warned_of_once_another_machine_takes_part() -> None:
    host = make_machine("gpu01", "127.0.0.1")
    assert checks(make_deployment(), host)["address_for_others"][0] == "ok"
    make_machine("gpu02", "10.0.0.2")
    assert checks(make_deployment(), host)["address_for_others"][0] == "warning"


def test_two_agents_on_one_machine_may_meet_at_loopback() -> None:
    inventory = {**make_inventory(), "hostname": "laptop"}
    host = make_host(inventory=inventory)
    make_host(inventory=inventory)
    assert checks(make_deployment(), host)["address_for_others"][0] == "ok"


def test_a_peer_that_runs_with_other_arguments_is_in_the_way() -> None:
    deployment = make_deployment(engine_args=["--block-size", "16"])
    peer = make_server(R.DECODE, S.READY, deployment, launch_spec={"argv": ["vllm", "serve", "--block-size", "32"]})
    result, detail = checks(deployment, make_host())["pairs"]
    assert result == "failed"
    assert f"With {peer.name}: their block size differs (16 and 32)" in detail


def test_a_plain_server_pairs_with_nobody() -> None:
    assert "pairs" not in checks(make_deployment(), make_host(), "plain")
