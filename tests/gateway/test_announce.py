"""A router process says what it serves and carries, and when it ends."""

import redis

from console import valkey as connections
from console.gateway import loads
from console.gateway.announce import Announcer
from console.gateway.loads import RouterLoad
from tests.gateway.standin import StandInCircuit, StandInLoad, StandInRouter


def announcer(router: StandInRouter) -> Announcer:
    return Announcer(router, "router-a", lambda: 9)


async def announce(router: StandInRouter) -> None:
    async with connections.async_client() as client:
        await announcer(router).announce(client)


async def test_it_says_its_epoch_and_its_loads(valkey: "redis.Redis") -> None:
    await announce(StandInRouter(carried={"4": StandInLoad(3, 1), "5": StandInLoad()}))
    assert loads.read() == {4: RouterLoad(3, 1)}
    assert [(router.id, router.epoch) for router in loads.routers()] == [("router-a", 9)]


async def test_it_says_which_servers_it_leaves_alone_and_why(valkey: "redis.Redis") -> None:
    carried = {"4": StandInLoad(), "5": StandInLoad(), "6": StandInLoad()}
    broken = {
        "4": StandInCircuit("open", "connection refused"),
        "5": StandInCircuit("half-open"),
        "6": StandInCircuit(),
    }
    await announce(StandInRouter(carried=carried, broken=broken))
    assert {server_id: load.avoided for server_id, load in loads.read().items()} == {
        4: "connection refused",
        5: "it failed repeatedly",
    }


async def test_it_says_which_servers_have_work_and_bring_nothing(valkey: "redis.Redis") -> None:
    carried = {"4": StandInLoad(2), "5": StandInLoad(2)}
    await announce(StandInRouter(carried=carried, broken={"4": StandInCircuit(is_silent=True), "5": StandInCircuit()}))
    assert {server_id: load.is_silent for server_id, load in loads.read().items()} == {4: True, 5: False}
    assert (loads.read()[4] + loads.read()[5]).is_silent


async def test_what_it_said_expires(valkey: "redis.Redis") -> None:
    await announce(StandInRouter())
    left_ms = valkey.pttl(loads.report_key("router-a"))
    assert isinstance(left_ms, int)
    assert 0 < left_ms <= loads.SILENT_AFTER_S * 1000


async def test_a_router_that_ends_is_forgotten_at_once(valkey: "redis.Redis") -> None:
    await announce(StandInRouter(carried={"4": StandInLoad(3, 1)}))
    await announcer(StandInRouter()).leave()
    assert loads.routers() == []
