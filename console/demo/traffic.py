"""Sends the demo's mixed traffic: `python -m console.demo.traffic FILE`, FILE being the demo's `demo.json`.

Open loop: requests leave when they are due, whatever happened to the ones before, as people's do. Short chats, now and
then a long prompt. At most `MOST_AT_ONCE` are under way; a request that would be one more is left out. A plain socket
client, because every millisecond that it burns is one that the servers on this machine do not get.
"""

import argparse
import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

MOST_AT_ONCE = 24
GIVE_UP_AFTER_S = 180.0
SENTENCE = "the pump runs a little warmer than before so we check its bearing and then the oil in the second tank"
WORDS = SENTENCE.split()


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of request. Lengths are drawn evenly between their two ends."""

    per_s: float
    prompt_words: tuple[int, int]
    answer_tokens: tuple[int, int]
    streamed_share: float


MIXES = {
    "simulated": (
        Kind(per_s=1.5, prompt_words=(20, 200), answer_tokens=(40, 160), streamed_share=0.9),
        Kind(per_s=0.12, prompt_words=(2500, 5000), answer_tokens=(20, 60), streamed_share=1.0),
    ),
    "vllm": (
        Kind(per_s=0.1, prompt_words=(20, 80), answer_tokens=(30, 80), streamed_share=0.9),
        Kind(per_s=0.012, prompt_words=(500, 900), answer_tokens=(10, 20), streamed_share=1.0),
    ),
}


def make_body(model: str, kind: Kind, chance: random.Random) -> bytes:
    words = [chance.choice(WORDS) for _ in range(chance.randint(*kind.prompt_words))]
    streamed = chance.random() < kind.streamed_share
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": chance.randint(*kind.answer_tokens),
        "temperature": 0,
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    return json.dumps(body).encode()


class Sender:
    """Where to send and how much is under way."""

    def __init__(self, url: str, key: str, model: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.key, self.model = key, model
        self.under_way: set[asyncio.Task[None]] = set()

    async def keep_sending(self, kind: Kind, chance: random.Random) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(loop.time(), due + chance.expovariate(kind.per_s))
            await asyncio.sleep(due - loop.time())
            if len(self.under_way) < MOST_AT_ONCE:
                task = loop.create_task(self._send(make_body(self.model, kind, chance)))
                self.under_way.add(task)
                task.add_done_callback(self.under_way.discard)

    async def _send(self, body: bytes) -> None:
        """One exchange. A console that is starting again, or has no server for us, is no reason to end."""
        try:
            async with asyncio.timeout(GIVE_UP_AFTER_S):
                await self._exchange(body)
        except (OSError, TimeoutError):
            return

    async def _exchange(self, body: bytes) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(self._head(len(body)) + body)
            while await reader.read(65536):
                pass
        finally:
            writer.transport.abort()

    def _head(self, length: int) -> bytes:
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {length}\r\nconnection: close\r\n\r\n"
        ).encode()


async def send_mix(demo: dict[str, str]) -> None:
    sender = Sender(demo["url"], demo["inference_key"], demo["model"])
    async with asyncio.TaskGroup() as group:
        for number, kind in enumerate(MIXES[demo["engine"]]):
            group.create_task(sender.keep_sending(kind, random.Random(number)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="", help="where to send, when that is not the address in FILE")
    given = parser.parse_args()
    demo = json.loads(given.file.read_text())
    asyncio.run(send_mix({**demo, "url": given.url or demo["url"]}))


if __name__ == "__main__":
    main()
