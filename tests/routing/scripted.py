"""A scripted model server that speaks bytes, a router in front of it on a real socket, and a raw client."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, cast

import uvicorn

from routing.app import Router
from routing.record import Record
from routing.table import Deployment, Policy, Role, Server, Table
from routing.uvicorn_protocol import protocol_for
from tests.own import hold_port, port_of
from tests.waiting import LIMIT_S

Json = dict[str, Any]
HANDOFF: Json = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2, 3]],
    "remote_engine_id": "engine-1",
    "remote_request_id": "cmpl-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}
SSE = "text/event-stream; charset=utf-8"


@dataclass
class Seen:
    """A request as the server got it."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Json:
        found: Json = json.loads(self.raw)
        return found


class Wire:
    """What a script writes with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def json(self, body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        await self.send(head(status, lines) + data)

    async def start_stream(self) -> None:
        await self.send(head(200, {"content-type": SSE, "transfer-encoding": "chunked"}))

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, payload: object) -> None:
        await self.chunk(event(payload))

    async def end_stream(self, *, done: bool = True) -> None:
        if done:
            await self.chunk(b"data: [DONE]\n\n")
        await self.send(b"0\r\n\r\n")

    async def read(self, size: int) -> bytes:
        """Of the request's body, where it was not read beforehand."""
        return await self._reader.readexactly(size)

    async def closed_by_router(self) -> None:
        """Returns when the router has closed the connection."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Seen, Wire], Awaitable[None]]


@dataclass
class Engine:
    """A server whose every answer is `script`'s. `seen` holds the requests it got; `open` counts connections."""

    script: Script
    name: str = "E"
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    open: int = 0
    accepted: int = 0
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _held: socket.socket | None = None

    async def start(self, port: int = 0) -> None:
        if not port:
            self._held = hold_port()
            port = port_of(self._held)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=2**22)
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def go_down(self) -> None:
        """Nothing answers at its address any more. Nobody else can come there before it is stopped."""
        assert self._server is not None
        self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        await self.go_down()
        if self._held is not None:
            self._held.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open += 1
        self.accepted += 1
        try:
            while (seen := await read_request(reader)) is not None:
                self.seen.append(seen)
                await self.script(seen, Wire(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        top = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = top.decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(method, path, headers, body)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def chat_chunk(delta: Json, finish: str | None = None, **more: object) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    } | more


def usage_chunk(prompt: int = 8, completion: int = 3) -> Json:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [],
        "usage": usage,
    }


def prefill_answer(handoff: Json | None = HANDOFF, cached: int | None = None) -> Json:
    usage: Json = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}]
    return {"id": "chatcmpl-1", "choices": choices, "usage": usage, "kv_transfer_params": handoff}


def chat_answer(text: str = "hello there") -> Json:
    usage = {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}
    choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": choices, "usage": usage}


async def prefills(seen: Seen, wire: Wire) -> None:
    """A prefill server that always hands over."""
    await wire.json(prefill_answer())


def streams(tokens: Sequence[str] = ("a", "b", "c"), gap_s: float = 0.0) -> Script:
    """A decode or plain server: streams when asked to, with a usage chunk when asked to."""

    async def script(seen: Seen, wire: Wire) -> None:
        if not seen.body.get("stream"):
            await wire.json(chat_answer("".join(tokens)))
            return
        await wire.start_stream()
        await wire.event(chat_chunk({"role": "assistant", "content": ""}))
        for token in tokens[:-1]:
            await wire.event(chat_chunk({"content": token}))
            if gap_s:
                await asyncio.sleep(gap_s)
        await wire.event(chat_chunk({"content": tokens[-1]}, "stop"))
        if (seen.body.get("stream_options") or {}).get("include_usage"):
            await wire.event(usage_chunk(completion=len(tokens)))
        await wire.end_stream()

    return script


def lists(then: Script | None = None) -> Script:
    """Answers with a model card, and else as `then` does."""
    serve = then or streams()

    async def script(seen: Seen, wire: Wire) -> None:
        if seen.path == "/v1/models":
            await wire.json({"data": [{"id": "m", "object": "model", "max_model_len": 4096}]})
        else:
            await serve(seen, wire)

    return script


def answers(status: int, body: object, headers: Mapping[str, str] | None = None) -> Script:
    async def script(seen: Seen, wire: Wire) -> None:
        await wire.json(body, status, headers)

    return script


def after(go: asyncio.Event, then: Script) -> Script:
    """Does nothing before `go` is set."""

    async def script(seen: Seen, wire: Wire) -> None:
        await go.wait()
        await then(seen, wire)

    return script


async def hangs(seen: Seen, wire: Wire) -> None:
    """Never answers; ends when the router gives up."""
    await wire.closed_by_router()


async def resets(seen: Seen, wire: Wire) -> None:
    wire.reset()


class Records:
    """An observer that keeps what it is told: what changes in a record afterwards comes too late."""

    def __init__(self) -> None:
        self.all: list[Record] = []
        self.first_tokens: list[Record] = []

    def first_token(self, record: Record) -> None:
        self.first_tokens.append(record)

    def finished(self, record: Record) -> None:
        self.all.append(replace(record, gaps_ms=record.gaps_ms[:]))

    async def wait(self, count: int = 1) -> list[Record]:
        await until(lambda: len(self.all) >= count)
        return self.all


async def until(condition: Callable[[], object]) -> None:
    """Raises TimeoutError when it does not come true in time."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - any condition at all, which sets no event
            await asyncio.sleep(0.002)


Face = Literal["direct", "asgi"]


@dataclass
class Site:
    """A router on a socket, with its engines by name."""

    router: Router
    records: Records
    engines: dict[str, Engine]
    port: int = 0

    def __getitem__(self, name: str) -> Engine:
        return self.engines[name]

    def server(self, name: str, **changes: Any) -> Server:
        return Server(name, name, role_of(name), self.engines[name].url, **changes)

    def publish(self, policy: Policy | None = None, servers: Sequence[Server] | None = None, **more: Any) -> None:
        """A table with one deployment, named and modelled `m`."""
        if servers is None:
            servers = [self.server(name) for name in self.engines]
        deployment = Deployment("m", "m", tuple(servers), policy=policy or Policy(), **more)
        self.router.swap(Table(self.router.table.epoch + 1, MappingProxyType({"m": deployment})))

    async def post(
        self, body: object, path: str = "/v1/chat/completions", headers: Mapping[str, str] | None = None
    ) -> "Answer":
        return await ask(self.port, "POST", path, body, headers)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> "Answer":
        return await ask(self.port, "GET", path, None, headers)

    async def chat(self, **body: Any) -> "Answer":
        return await self.post(chat_body(**body))

    async def record(self) -> Record:
        return (await self.records.wait())[-1]

    def nothing_is_held(self) -> bool:
        loads = self.router.loads().values()
        return not any(
            (load.inflight, load.streams, load.prompt_tokens, load.handoffs) != (0, 0, 0, 0) for load in loads
        )


def role_of(name: str) -> Role:
    roles: dict[str, Role] = {"P": "prefill", "D": "decode", "N": "plain"}
    return roles[name[0]]


def chat_body(**more: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | more


@asynccontextmanager
async def site(
    scripts: Mapping[str, Script],
    policy: Policy | None = None,
    *,
    face: Face = "direct",
    max_body_bytes: int = 64 * 2**20,
    records: Records | None = None,
    **deployment: Any,
) -> AsyncIterator[Site]:
    """Engines named P…, D…, N… for prefill, decode and plain, and a router in front of them."""
    engines = {name: Engine(script, name) for name, script in scripts.items()}
    for engine in engines.values():
        await engine.start()
    records = records or Records()
    router = Router(observer=records, max_body_bytes=max_body_bytes)
    place = Site(router, records, engines)
    place.publish(policy, **deployment)
    config = uvicorn.Config(
        router,
        http=protocol_for(router) if face == "direct" else "httptools",
        interface="asgi3",
        host="127.0.0.1",
        port=0,
        log_level="critical",
        lifespan="off",
        access_log=False,
    )
    listening = config.bind_socket()
    place.port = listening.getsockname()[1]
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await until(lambda: server.started)
        yield place
    finally:
        server.should_exit = server.force_exit = True
        await router.aclose()
        await serving
        for engine in engines.values():
            await engine.stop()


@dataclass
class Answer:
    """A whole answer as the client got it."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    """The body's own framing says that it is complete."""

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.body)
        return found

    @property
    def events(self) -> list[Any]:
        """The stream's data, `[DONE]` as a string."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    @property
    def text(self) -> str:
        choices = [event["choices"][0] for event in self.events if isinstance(event, dict) and event.get("choices")]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


async def ask(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    async with Client(port) as client:
        await client.send(method, path, body, headers)
        return await client.answer()


class Client:
    """One connection to the router, in bytes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    @property
    def transport(self) -> asyncio.ReadTransport:
        """To stop reading for a while."""
        return cast(asyncio.ReadTransport, self.writer.transport)  # uvloop's is none by inheritance.

    async def send(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = {"host": "router", "content-type": "application/json", "content-length": str(len(data))}
        lines |= {name.lower(): value for name, value in (headers or {}).items()}
        top = "\r\n".join([f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in lines.items())])
        self.writer.write(top.encode() + b"\r\n\r\n" + data)
        await self.writer.drain()

    async def chat(self, **body: Any) -> None:
        await self.send("POST", "/v1/chat/completions", chat_body(**body))

    async def head(self) -> tuple[int, dict[str, str]]:
        top = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in top[1:] if line)}
        return int(top[0].split(" ")[1]), headers

    async def chunk(self) -> bytes:
        """The next HTTP chunk's data; empty for the last."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def answer(self) -> Answer:
        async with asyncio.timeout(LIMIT_S):
            return await self._answer()

    async def _answer(self) -> Answer:
        status, headers = await self.head()
        if "content-length" in headers:
            body = await self.reader.read(int(headers["content-length"])) if headers["content-length"] != "0" else b""
            while len(body) < int(headers["content-length"]) and (more := await self.reader.read(65536)):
                body += more
            return Answer(status, headers, body, len(body) == int(headers["content-length"]))
        parts: list[bytes] = []
        try:
            while part := await self.chunk():
                parts.append(part)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return Answer(status, headers, b"".join(parts), False)
        return Answer(status, headers, b"".join(parts), True)
