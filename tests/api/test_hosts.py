"""Hosts through the API."""

from typing import Any

import pytest

from console.accounts.models import AuditEntry, Role
from console.fleet.models import Host
from console.fleet.states import ServerState
from tests.api.calls import Api
from tests.factories import make_host, make_server

pytestmark = pytest.mark.django_db


def test_a_host_tells_its_gpus_and_servers() -> None:
    host = make_host("gpu01", gpus=2)
    make_server(host=host, state=ServerState.READY, name="chat-1")
    body = Api(Role.VIEWER).get("/hosts/gpu01").body
    assert (body["name"], body["reachable"], body["maintenance"]) == ("gpu01", True, False)
    assert [gpu["index"] for gpu in body["gpus"]] == [0, 1]
    assert [server["name"] for server in body["servers"]] == ["chat-1"]


def test_a_host_that_has_not_reported_is_shown_as_it_is() -> None:
    Host.objects.create(name="gpu02")
    body = Api(Role.VIEWER).get("/hosts/gpu02").body
    assert (body["reachable"], body["heartbeat_age_s"], body["gpus"]) == (False, None, [])


def test_hosts_are_listed_and_filtered() -> None:
    make_host("gpu01")
    make_host("gpu02", maintenance=True)
    api = Api(Role.VIEWER)
    assert [host["name"] for host in api.get("/hosts").body["items"]] == ["gpu01", "gpu02"]
    assert [host["name"] for host in api.get("/hosts", maintenance="true").body["items"]] == ["gpu02"]
    assert api.get("/hosts", maintenance="perhaps").error["field"] == "maintenance"


def test_a_host_is_registered_by_an_admin() -> None:
    assert Api(Role.ADMIN).post("/hosts", {"name": "gpu03"}).status == 201
    assert Host.objects.get().name == "gpu03"
    assert Api(Role.OPERATOR).post("/hosts", {"name": "gpu04"}).status == 403


@pytest.mark.parametrize("name", ["", "GPU 03", "gpu01", "x" * 64, None, 3])
def test_a_name_that_will_not_do_registers_nothing(name: Any) -> None:
    make_host("gpu01")
    assert Api(Role.ADMIN).post("/hosts", {"name": name}).error["field"] == "name"
    assert Host.objects.count() == 1


def test_an_empty_host_is_removed() -> None:
    make_host("gpu01")
    assert Api(Role.ADMIN).delete("/hosts/gpu01").body == {"deleted": "host gpu01"}
    assert not Host.objects.exists()


def test_a_host_with_servers_stays() -> None:
    make_server(host=make_host("gpu01"))
    assert Api(Role.ADMIN).delete("/hosts/gpu01").status == 409
    assert Host.objects.exists()


def test_maintenance_is_switched_with_a_reason() -> None:
    make_host("gpu01")
    api = Api(Role.OPERATOR)
    assert api.post("/hosts/gpu01/maintenance", {"on": True, "reason": "new fan"}).body["maintenance"] is True
    assert AuditEntry.objects.get().reason == "new fan"
    assert api.post("/hosts/gpu01/maintenance", {"on": False}).body["maintenance"] is False


@pytest.mark.parametrize("on", [None, "yes", 1])
def test_maintenance_is_on_or_off(on: Any) -> None:
    make_host("gpu01")
    assert Api(Role.OPERATOR).post("/hosts/gpu01/maintenance", {"on": on}).error["field"] == "on"


def test_maintenance_can_be_rehearsed() -> None:
    make_host("gpu01")
    assert Api(Role.OPERATOR).post("/hosts/gpu01/maintenance", {"on": True, "dry_run": True}).body["maintenance"]
    assert not Host.objects.get().maintenance


def test_draining_a_host_stops_what_runs_there_once_confirmed() -> None:
    server = make_server(state=ServerState.READY, host=make_host("gpu01"))
    olga = Api(Role.OPERATOR)
    refused = olga.post("/hosts/gpu01/drain", {})
    assert (refused.status, refused.error["field"]) == (409, "confirmed")
    drained = olga.post("/hosts/gpu01/drain", {"confirmed": True})
    assert (drained.status, drained.body["servers"]) == (202, [server.name])
    server.refresh_from_db()
    assert server.state == ServerState.DRAINING
