"""What the routers have in flight, and when a server counts as drained."""

import time
from datetime import timedelta

import pytest
import redis
from django.utils import timezone
from pytest_django import Settings

from console.fleet.models import Server
from console.fleet.states import ServerState
from console.gateway import loads
from console.gateway.loads import RouterLoad, RouterReport
from tests.factories import make_server

pytestmark = pytest.mark.django_db


def say(valkey: "redis.Redis", router: str, epoch: int, counts: dict[int, RouterLoad]) -> None:
    report = RouterReport(router, epoch, time.time(), counts)
    valkey.set(loads.report_key(router), report.encode(), ex=10)
    valkey.zadd(loads.members_key(), {router: report.at})


def draining(epoch: int = 7) -> Server:
    return make_server(state=ServerState.DRAINING, drain_epoch=epoch)


def test_loads_are_summed_over_the_routers(valkey: "redis.Redis") -> None:
    say(valkey, "a", 1, {4: RouterLoad(2, 1)})
    say(valkey, "b", 1, {4: RouterLoad(3, 0), 5: RouterLoad(1, 0)})
    assert loads.read() == {4: RouterLoad(5, 1), 5: RouterLoad(1, 0)}


def test_living_routers_are_listed_with_their_epoch(valkey: "redis.Redis") -> None:
    say(valkey, "a", 3, {})
    assert [(router.id, router.epoch) for router in loads.routers()] == [("a", 3)]


def test_a_router_that_fell_silent_is_forgotten(valkey: "redis.Redis") -> None:
    say(valkey, "a", 3, {1: RouterLoad(1, 0)})
    valkey.delete(loads.report_key("a"))
    assert loads.routers() == []
    assert loads.read() == {}


def test_drained_when_every_router_knows_and_has_nothing(valkey: "redis.Redis") -> None:
    server = draining(epoch=7)
    say(valkey, "a", 7, {})
    say(valkey, "b", 8, {server.pk + 1: RouterLoad(5, 0)})
    assert loads.drained(server)


@pytest.mark.parametrize("load", [RouterLoad(1, 0), RouterLoad(0, 1)])
def test_not_drained_with_a_stream_or_a_hand_off_left(valkey: "redis.Redis", load: RouterLoad) -> None:
    server = draining(epoch=7)
    say(valkey, "a", 7, {})
    say(valkey, "b", 7, {server.pk: load})
    assert not loads.drained(server)


def test_a_server_that_a_router_leaves_alone_can_be_drained(valkey: "redis.Redis") -> None:
    server = draining(epoch=7)
    say(valkey, "a", 7, {server.pk: RouterLoad(0, 0, "connection refused")})
    assert loads.drained(server)


def test_why_a_server_is_left_alone_is_known_when_one_router_says_so(valkey: "redis.Redis") -> None:
    say(valkey, "a", 1, {4: RouterLoad(1, 0)})
    say(valkey, "b", 1, {4: RouterLoad(0, 0, "connection refused")})
    assert loads.read() == {4: RouterLoad(1, 0, "connection refused")}


def test_not_drained_while_one_router_serves_an_older_table(valkey: "redis.Redis") -> None:
    server = draining(epoch=7)
    say(valkey, "a", 7, {})
    say(valkey, "b", 6, {})
    assert not loads.drained(server)


def test_not_drained_before_its_removal_was_published(valkey: "redis.Redis") -> None:
    say(valkey, "a", 7, {})
    assert not loads.drained(make_server(state=ServerState.READY))


def test_without_any_router_a_server_is_drained_once_one_would_have_reported(valkey: "redis.Redis") -> None:
    server = draining()
    assert not loads.drained(server)
    server.state_since = timezone.now() - timedelta(seconds=loads.SILENT_AFTER_S + 1)
    assert loads.drained(server)


def test_nothing_is_drained_while_valkey_is_away(settings: Settings) -> None:
    server = draining()
    server.state_since = timezone.now() - timedelta(hours=1)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert not loads.drained(server)
    assert loads.read() == {}
    assert loads.routers() == []
