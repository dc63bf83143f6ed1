"""The demo's traffic: mixed, open loop, and not put off by a console that refuses or goes away."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest

from console.demo import traffic
from console.demo.traffic import MIXES, Kind, Sender, make_body
from tests.waiting import LIMIT_S

BUSY = Kind(per_s=200.0, prompt_words=(1, 2), answer_tokens=(1, 2), streamed_share=1.0)
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class FakeConsole:
    """Counts what arrives; answers 503, or nothing at all while `answers` is off."""

    def __init__(self, answers: bool = True) -> None:
        self.answers, self.heads, self.open, self.most_open = answers, list[bytes](), 0, 0
        self.news = asyncio.Condition()
        self.served: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "FakeConsole":
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in self.served:
            task.cancel()
        await asyncio.gather(*self.served, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.served.add(task)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            async with self.news:
                self.news.notify_all()
            if self.answers:
                writer.write(REFUSED)
                await writer.drain()
            else:
                await reader.read()
        finally:
            self.open -= 1
            writer.transport.abort()
            await writer.wait_closed()


@pytest.fixture
async def sending() -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def start(console: FakeConsole, tasks: list[asyncio.Task[None]]) -> Sender:
    sender = Sender(f"http://127.0.0.1:{console.port}", "syk-1", "chat")
    tasks.append(asyncio.create_task(sender.keep_sending(BUSY, random.Random(1))))
    tasks.append(asyncio.create_task(end_with_test(sender)))
    return sender


async def end_with_test(sender: Sender) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        tasks = list(sender.under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def arrived(console: FakeConsole, count: int) -> None:
    async with asyncio.timeout(LIMIT_S), console.news:
        await console.news.wait_for(lambda: len(console.heads) >= count)


async def test_it_goes_on_after_refusals(sending: list[asyncio.Task[None]]) -> None:
    async with FakeConsole() as console:
        start(console, sending)
        await arrived(console, 20)
    assert b"authorization: Bearer syk-1\r\n" in console.heads[0]


async def test_it_goes_on_after_the_console_was_away(sending: list[asyncio.Task[None]]) -> None:
    async with FakeConsole() as console:
        sender = start(console, sending)
        await arrived(console, 3)
    async with FakeConsole() as console:
        sender.port = console.port
        await arrived(console, 3)


async def test_no_more_than_the_limit_is_under_way(
    sending: list[asyncio.Task[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "MOST_AT_ONCE", 5)
    async with FakeConsole(answers=False) as console:
        sender = start(console, sending)
        await arrived(console, 5)
        await asyncio.sleep(0.1)  # some twenty more are due meanwhile
        assert len(sender.under_way) == 5
        assert console.most_open == 5


@pytest.mark.parametrize("engine", list(MIXES))
def test_the_mix_has_short_chats_and_long_prompts(engine: str) -> None:
    chats, long_prompts = (json.loads(make_body("chat", kind, random.Random(3))) for kind in MIXES[engine])
    assert len(long_prompts["messages"][0]["content"]) > 5 * len(chats["messages"][0]["content"])
    assert chats["model"] == "chat"
    assert chats["stream_options"] == {"include_usage": True}
