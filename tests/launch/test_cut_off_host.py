"""A host whose network is cut, with a whole console in front: what is shown, what requests see, and the way back."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis
from django.conf import settings

from console.fleet import actions, moves
from console.fleet.errors import Conflict
from console.fleet.models import Server
from console.fleet.states import ServerState
from tests.factories import OPERATOR
from tests.launch.clients import ask
from tests.launch.networks import FakeHost, bridged, here, why_not
from tests.launch.running import (
    Installation,
    add_server,
    installed,
    make_deployment,
    wait_for_state,
)

S = ServerState


@pytest.fixture
def hosts() -> Iterator[list[FakeHost]]:
    """Two, and the broker that they reach."""
    if reason := why_not():
        pytest.skip(reason)
    with bridged(2) as made, redis.Redis.from_url(settings.REDIS_URL) as broker:
        usual = broker.config_get("bind")["bind"]
        broker.config_set("bind", f"127.0.0.1 {here()}")
        yield made
        broker.config_set("bind", usual)


@pytest.fixture
def running(hosts: list[FakeHost], tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Any]:
    with installed(tmp_path_factory, django_db_blocker) as installation:
        for host in hosts:
            name, inside = f"gpu0{host.number}", host.inside([])
            installation.run_agent(name, 1, host.address, inside, REDIS_URL=broker_on_the_bridge())
        yield installation


def broker_on_the_bridge() -> str:
    parts = urlsplit(settings.REDIS_URL)
    return urlunsplit(parts._replace(netloc=parts.netloc.replace("127.0.0.1", here())))


def test_a_host_whose_network_is_cut_is_unreachable_and_comes_back_as_it_was(
    running: Installation, hosts: list[FakeHost]
) -> None:
    deployment = make_deployment()
    lost, other = (add_server(deployment, "plain", 0, host=f"gpu0{host.number}") for host in hosts)
    for server in (lost, other):
        actions.start(server.pk, OPERATOR)
    before = wait_for_state(lost, S.READY)
    wait_for_state(other, S.READY)

    hosts[0].cut_off()
    gone = wait_for_state(lost, S.UNREACHABLE)
    assert gone.state_before_unreachable == S.READY
    with pytest.raises(Conflict, match="unreachable"):
        moves.request(lost.pk, "decode", OPERATOR, confirmed=True)
    for _ in range(5):
        ask(running, deployment.served_model_name)
    assert Server.objects.get(pk=other.pk).state == S.READY

    hosts[0].heal()
    back = wait_for_state(lost, S.READY)
    assert (back.generation, back.observed["pid"]) == (1, before.observed["pid"])
    actions.stop(lost.pk, OPERATOR)
    wait_for_state(lost, S.STOPPED)
