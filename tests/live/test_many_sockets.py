"""Many sockets, slow sockets, broken sockets: work and memory stay what they are, and no gap goes unseen."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import orjson
import pytest
import redis
from django.db import connections
from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as connect_async
from websockets.typing import Origin

from console.accounts.models import User
from console.database import DatabaseThread
from console.fleet.models import Deployment
from console.live import bus, fanout
from tests.factories import make_deployment, make_user
from tests.waiting import wait_until
from tests.web import ANSWER_LIMIT_S, RunningWeb, receive, session_of

pytestmark = pytest.mark.django_db(transaction=True)


def dots(first: int, count: int, padding: int = 100) -> list[Any]:
    return [
        {"type": "ttft", "t": time.time(), "request_id": f"r{first + number}", "ttft_ms": 1.0, "route": "x" * padding}
        for number in range(count)
    ]


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [int(event["request_id"][1:]) for event in events if event["type"] == "ttft"]


def test_bursts_reach_every_tab_whole_and_in_order(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    """500 events a second, as one burst each tenth of a second."""
    with web.socket("chat", viewer) as one, web.socket("chat", viewer) as two, web.socket("chat", viewer) as three:
        tabs = [one, two, three]
        seq = {tab: receive(tab)["seq"] for tab in tabs}
        for burst in range(40):
            bus.publish(deployment.pk, dots(burst * 50, 50))
            time.sleep(0.02)
        for tab in tabs:
            seen: list[int] = []
            while len(seen) < 2000:
                frame = receive(tab)
                assert (frame["seq"], frame["dropped"]) == (seq[tab] + 1, 0)
                seq[tab] = frame["seq"]
                seen += numbers(frame["events"])
            assert seen == list(range(2000))


def test_a_client_that_never_reads_costs_a_bounded_queue_and_the_others_nothing(
    web: RunningWeb, viewer: User, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "FRAMES_QUEUED", 12)
    monkeypatch.setattr(fanout, "EVENTS_PER_FRAME", 100)
    with reads_nothing(web, viewer), web.socket("chat", viewer) as keen:
        receive(keen)
        wait_until(lambda: len(web.collector.viewers) == 2)
        seen: list[int] = []
        for burst in range(20):
            bus.publish(deployment.pk, dots(burst * 1000, 1000, padding=1000))
            while not seen or seen[-1] != burst * 1000 + 999:
                seen += numbers(receive(keen)["events"])
        assert seen == list(range(20_000))
        lost = [viewer.dropped for viewer in web.collector.viewers]
        assert sorted(count > 0 for count in lost) == [False, True]
        assert max(len(viewer._frames) for viewer in web.collector.viewers) <= 12


@contextmanager
def reads_nothing(web: RunningWeb, viewer: User) -> Iterator[None]:
    """A socket that is opened properly, with a small window, and never read again."""
    request = (
        f"GET /ws/deployments/chat/ HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\nOrigin: {web.url}\r\n"
        f"Cookie: sessionid={session_of(viewer)}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", web.port))
        raw.sendall(request.encode())
        assert b" 101 " in raw.recv(64)
        yield


def test_after_a_break_the_snapshot_holds_what_was_missed(
    web: RunningWeb, viewer: User, deployment: Deployment
) -> None:
    with web.socket("chat", viewer) as connection:
        receive(connection)
        bus.publish(deployment.pk, dots(0, 10))
        wait_until(lambda: len(numbers(receive(connection)["events"])) == 10)
    bus.publish(deployment.pk, dots(10, 10))
    channel = web.collector.channel(deployment.pk)
    wait_until(lambda: len(channel.history.charts(time.time())["ttft"]) == 20)
    with web.socket("chat", viewer) as connection:
        snapshot = receive(connection)
        bus.publish(deployment.pk, dots(20, 1))
        later: list[int] = []
        while not later:
            later = numbers(receive(connection)["events"])
    assert numbers(snapshot["ttft"]) == list(range(20))
    assert later == [20]


def test_ten_tabs_ask_the_database_no_more_than_one(
    web: RunningWeb, viewer: User, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    run, live = DatabaseThread.run, web.application.pages.services.database

    async def counted(self: DatabaseThread, call: Any, *args: Any, **kwargs: Any) -> Any:
        if self is live or call.__name__ == "_load_if_changed":
            calls.append(call.__name__)
        return await run(self, call, *args, **kwargs)

    monkeypatch.setattr(DatabaseThread, "run", counted)
    with ExitStack() as tabs:
        for _ in range(10):
            receive(tabs.enter_context(web.socket("chat", viewer)))
        calls.clear()
        began = time.monotonic()
        wait_until(lambda: calls.count("_load_if_changed") >= 5, "five looks at the epoch")
        seconds = time.monotonic() - began
        # Between two calls of a kind is a second's rest; made for each tab they would be ten times as many.
        assert {name for name, count in Counter(calls).items() if count > seconds + 2} == set()


async def test_two_hundred_sockets_get_a_frame_within_a_second(valkey: "redis.Redis", transactional_db: None) -> None:
    def prepare() -> tuple[int, str]:
        made = make_deployment("chat").pk, session_of(make_user())
        connections.close_all()
        return made

    deployment_id, session = await asyncio.to_thread(prepare)
    web = await asyncio.to_thread(RunningWeb().__enter__)
    sockets: list[AsyncConnection] = []
    try:
        for _ in range(200):
            sockets.append(await open_socket(web, session))
        began = time.monotonic()
        await asyncio.to_thread(bus.publish, deployment_id, dots(0, 1))
        await asyncio.gather(*(first_dot(each) for each in sockets))
        assert time.monotonic() - began < 30  # a fraction of a second on a quiet machine
    finally:
        await asyncio.gather(*(each.close() for each in sockets))
        await asyncio.to_thread(web.__exit__)


async def open_socket(web: RunningWeb, session: str) -> AsyncConnection:
    opened = await connect_async(
        f"ws://127.0.0.1:{web.port}/ws/deployments/chat/",
        origin=Origin(web.url),
        additional_headers={"Cookie": f"sessionid={session}"},
        compression=None,
        open_timeout=ANSWER_LIMIT_S,
        ping_interval=None,
    )
    assert orjson.loads(await opened.recv())["type"] == "snapshot"
    return opened


async def first_dot(connection: AsyncConnection) -> None:
    while not numbers(orjson.loads(await connection.recv())["events"]):
        pass
