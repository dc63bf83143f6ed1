"""Registering, maintaining, draining and removing hosts."""

from typing import Any

import pytest

from console.fleet import actions, maintenance
from console.fleet.errors import Conflict, Forbidden, Invalid
from console.fleet.models import Host, Server
from console.fleet.states import ServerRole, ServerState
from tests.factories import ADMIN, OPERATOR, VIEWER, make_deployment, make_host, make_server
from tests.sent import Sent

pytestmark = pytest.mark.django_db(transaction=True)
R, S = ServerRole, ServerState


def test_an_admin_registers_a_host_before_it_reports() -> None:
    host = actions.register_host(ADMIN, "gpu09")
    assert (host.is_reachable, host.address) == (False, "")
    with pytest.raises(Forbidden):
        actions.register_host(OPERATOR, "gpu10")


@pytest.mark.parametrize("name", ["", "GPU", "gpu_1", "-gpu"])
def test_a_name_that_no_host_can_have_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        actions.register_host(ADMIN, name)
    assert refused.value.field == "name"


def test_a_host_is_registered_once() -> None:
    actions.register_host(ADMIN, "gpu09")
    with pytest.raises(Invalid, match="already"):
        actions.register_host(ADMIN, "gpu09")


def test_a_host_with_servers_stays() -> None:
    server = make_server()
    with pytest.raises(Conflict, match=server.name):
        actions.remove_host(server.own_host.pk, ADMIN)
    empty = make_host()
    actions.remove_host(empty.pk, ADMIN)
    assert not Host.objects.filter(pk=empty.pk).exists()


def test_maintenance_leaves_what_runs(sent: Sent) -> None:
    server = make_server(state=S.READY)
    assert actions.set_maintenance(server.own_host.pk, True, OPERATOR).maintenance
    assert Server.objects.get(pk=server.pk).state == S.READY
    assert sent == []


def make_spread(**fields: Any) -> tuple[Host, list[Server]]:
    """A prefill and a decode server here, and the same once more on another host."""
    deployment, here, there = make_deployment(), make_host(), make_host()
    servers = [
        make_server(role, S.READY, deployment, host, gpu_indexes=[index])
        for host in (here, there)
        for index, role in enumerate((R.PREFILL, R.DECODE))
    ]
    return here, servers


def test_draining_a_host_takes_its_servers_out_of_traffic(sent: Sent) -> None:
    host, servers = make_spread()
    loading = make_server(state=S.LOADING, host=host, gpu_indexes=[3])
    seen = maintenance.drain_host(host.pk, OPERATOR, "new power supply")
    assert sorted(seen["servers"]) == sorted([servers[0].name, servers[1].name, loading.name])
    states = [Server.objects.get(pk=server.pk).state for server in [*servers, loading]]
    assert states == [S.DRAINING, S.DRAINING, S.READY, S.READY, S.STOPPING]
    assert Host.objects.get(pk=host.pk).maintenance


def test_the_last_of_a_role_is_named_and_has_to_be_confirmed(sent: Sent) -> None:
    host, servers = make_spread()
    Server.objects.filter(pk=servers[3].pk).update(state=S.STOPPED)
    with pytest.raises(Conflict, match="loses its last ready decode server") as refused:
        maintenance.drain_host(host.pk, OPERATOR)
    assert refused.value.field == "confirmed"
    assert not Host.objects.get(pk=host.pk).maintenance
    maintenance.drain_host(host.pk, OPERATOR, confirmed=True)
    assert Host.objects.get(pk=host.pk).maintenance


def test_a_deployment_that_would_stand_still_is_named() -> None:
    server = make_server(state=S.READY)
    assert "its requests fail" in maintenance.preview(server.own_host)["consequences"][0]


def test_a_viewer_drains_nothing() -> None:
    with pytest.raises(Forbidden):
        maintenance.drain_host(make_host().pk, VIEWER)
