"""The router of a process follows the table, and keeps the last one while the database is away."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.db import OperationalError

from console.accounts.models import InferenceKey
from console.background import Background
from console.database import DatabaseThread
from console.fleet.models import Server
from console.fleet.states import ServerState
from console.gateway import publish, sync, table
from console.gateway.models import Epoch
from console.gateway.sync import Sync
from tests.factories import make_deployment, make_server
from tests.gateway.standin import StandInRouter
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sync, "FIRST_LOOK_LIMIT_S", LIMIT_S)
    yield
    with suppress(FileNotFoundError):
        table.kept_path().unlink()


@pytest.fixture
async def database() -> AsyncIterator[DatabaseThread]:
    thread = DatabaseThread("test")
    yield thread
    await thread.run(lambda: None)
    thread.close()


@pytest.fixture
async def router(database: DatabaseThread) -> StandInRouter:
    return StandInRouter()


async def in_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await sync_to_async(call)(*args, **kwargs)


def ready_server() -> Server:
    return make_server(state=ServerState.READY)


def server_ids(router: StandInRouter) -> list[str]:
    return [server.id for deployment in router.table.deployments.values() for server in deployment.servers]


async def test_it_begins_with_the_newest_table(router: StandInRouter, database: DatabaseThread) -> None:
    server = await in_thread(ready_server)
    await Sync(router, database).begin()
    assert server_ids(router) == [str(server.pk)]


async def test_without_a_database_it_begins_with_the_table_kept_on_disk(
    router: StandInRouter, database: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await in_thread(ready_server)
    await Sync(StandInRouter(), database).begin()
    monkeypatch.setattr(sync, "_load_if_changed", away)
    await Sync(router, database).begin()
    assert server_ids(router) == [str(server.pk)]


def away(*_: Any) -> None:
    raise OperationalError("the database is away")


async def test_it_keeps_the_last_table_while_the_database_is_away(
    router: StandInRouter, database: DatabaseThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = await in_thread(ready_server)
    followed = Sync(router, database)
    await followed.begin()
    monkeypatch.setattr(sync, "_load_if_changed", away)
    await followed.look()
    await followed.look()
    assert server_ids(router) == [str(server.pk)]
    assert caplog.text.count("the database does not answer") == 1


async def test_it_swaps_when_the_epoch_has_grown(router: StandInRouter, database: DatabaseThread) -> None:
    followed = Sync(router, database)
    await followed.begin()
    server = await in_thread(ready_server)
    await in_thread(publish.changed)
    await followed.look()
    assert server_ids(router) == [str(server.pk)]
    assert router.table.epoch == await in_thread(Epoch.current)


async def test_it_does_not_read_rows_while_the_epoch_stands_still(
    router: StandInRouter, database: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Sync(router, database)
    await followed.begin()
    monkeypatch.setattr(table, "load", away)
    await followed.look()
    assert not followed._database_away


async def test_a_key_stops_working_soon_after_it_has_expired(
    router: StandInRouter, database: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = await in_thread(make_deployment)
    key, _ = await in_thread(InferenceKey.issue, deployment.pk, "short-lived")
    followed = Sync(router, database)
    await followed.begin()
    assert router.table.deployments[deployment.served_model_name].key_hashes == frozenset({key.hashed})
    await in_thread(InferenceKey.objects.filter(pk=key.pk).update, expires_at=deployment.created_at)
    monkeypatch.setattr(sync, "REBUILD_EVERY_S", 0.0)
    await followed.look()
    assert router.table.deployments[deployment.served_model_name].key_hashes == frozenset()


async def test_an_unchanged_table_is_not_swapped(
    router: StandInRouter, database: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_thread(ready_server)
    monkeypatch.setattr(sync, "REBUILD_EVERY_S", 0.0)
    followed = Sync(router, database)
    await followed.begin()
    await followed.look()
    assert router.swaps == 1


async def test_a_removed_servers_name_is_remembered(router: StandInRouter, database: DatabaseThread) -> None:
    server = await in_thread(ready_server)
    followed = Sync(router, database)
    await followed.begin()
    server_id = str(server.pk)
    await in_thread(server.delete)
    await in_thread(publish.changed)
    await followed.look()
    assert followed.names.servers[server_id].name == server.name


async def running(*loops: Callable[[], Awaitable[None]]) -> Background:
    background = Background()
    for loop in loops:
        background.start("test", loop)
    return background


async def test_a_nudge_is_followed_at_once(
    valkey: "redis.Redis", router: StandInRouter, database: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "LOOK_EVERY_S", 3600.0)
    followed = Sync(router, database)
    background = await running(followed.follow, followed.listen)
    try:
        await until(lambda: valkey.pubsub_numsub(publish.channel())[0][1] == 1)
        await in_thread(ready_server)
        await in_thread(publish.changed)
        await until(lambda: server_ids(router) != [])
    finally:
        await background.stop()


async def test_a_database_that_hangs_costs_one_request_its_wait_and_the_others_none(
    router: StandInRouter, database: DatabaseThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hanging(*_: Any) -> None:
        hangs.set()
        assert goes_on.wait(LIMIT_S)

    followed = Sync(router, database)
    await followed.begin()
    monkeypatch.setattr(sync, "_load_if_changed", hanging)
    monkeypatch.setattr(sync, "CATCH_UP_LIMIT_S", 0.05)
    background = await running(followed.follow)
    try:
        await until(hangs.is_set)
        await followed.catch_up()
        monkeypatch.setattr(sync, "CATCH_UP_LIMIT_S", 3600.0)
        await followed.catch_up()
        goes_on.set()
        await until(lambda: not followed._look_is_stuck)
        await followed.catch_up()
    finally:
        goes_on.set()
        await background.stop()


async def test_a_storm_of_changes_costs_few_looks(router: StandInRouter, database: DatabaseThread) -> None:
    followed = Sync(router, database)
    looks: list[float] = []

    async def look() -> None:
        looks.append(asyncio.get_running_loop().time())

    followed.look = look  # type: ignore[method-assign]
    background = await running(followed.follow)
    for _ in range(200):
        followed._nudged.set()
        await asyncio.sleep(0.001)
    await background.stop()
    assert min(later - earlier for earlier, later in pairwise(looks)) >= sync.LEAST_REST_S * 0.9


async def test_without_valkey_a_change_is_found_by_looking(
    router: StandInRouter, database: DatabaseThread, settings: Any
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    followed = Sync(router, database)
    background = await running(followed.follow, followed.listen)
    try:
        await in_thread(ready_server)
        await in_thread(publish.changed)
        await until(lambda: server_ids(router) != [])
    finally:
        await background.stop()
