"""The side channel: a decode server asks the prefill server itself for the KV of a prompt.

Messages are JSON objects, one per line, over TCP. `handshake` tells who listens, `read` fetches the contents of blocks,
`done` lets the prefill server free them, `heartbeat` extends their lease. The KV itself is not sent, only its hash;
the caller waits for as long as its bytes would take.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import orjson

from .lines import JsonLines

Message = dict[str, Any]
_MAX_LINE_BYTES = 16 << 20
CONNECTOR_VERSION = 13


class TransferFailed(Exception):
    """The KV cannot be had; the text is for the log. What follows depends on kv_load_failure_policy."""


class EngineFatal(Exception):
    """A hand-off that vLLM's engine does not survive."""


@dataclass(frozen=True)
class Identity:
    """What two engines must agree on before KV goes from one to the other."""

    engine_id: str
    model: str
    dtype: str
    mode: str
    block_size: int
    tensor_parallel: int

    @property
    def compatibility_hash(self) -> str:
        facts = f"0.31.0 {CONNECTOR_VERSION} {self.model} {self.dtype} {self.mode}"
        return f"{crc32(facts.encode()):08x}" * 8

    def as_message(self) -> Message:
        return {
            "engine_id": self.engine_id,
            "hash": self.compatibility_hash,
            "dtype": self.dtype,
            "block_size": self.block_size,
            "tp_size": self.tensor_parallel,
        }


class _ListenerProtocol(JsonLines):
    def __init__(self, answer: Callable[[Message], Message | None]) -> None:
        super().__init__()
        self._answer = answer

    def take(self, message: Any) -> None:
        reply = self._answer(message)
        if reply is not None:
            self.send(reply)


def bind(host: str, port: int) -> socket.socket:
    """Raises OSError when the port is in use."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


async def listen(sock: socket.socket, answer: Callable[[Message], Message | None]) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: _ListenerProtocol(answer), sock=sock)


@dataclass(frozen=True)
class HandOff:
    """`kv_transfer_params` of a decode request, read as vLLM reads them."""

    request_id: str
    engine_id: str
    host: str
    port: int
    blocks: tuple[int, ...]
    cached_tokens: int

    @classmethod
    def from_params(cls, params: Message) -> HandOff:
        """Raises EngineFatal for missing, empty or flat block ids, KeyError for other missing fields."""
        groups = params.get("remote_block_ids")
        if not isinstance(groups, list) or not groups or not all(isinstance(group, list) for group in groups):
            raise EngineFatal(f"AssertionError: remote_block_ids: {groups!r}")
        if not groups[0] or not all(isinstance(block, int) for block in groups[0]):
            raise EngineFatal(f"AssertionError: remote_block_ids: {groups!r}")
        return cls(
            request_id=str(_required(params, "remote_request_id")),
            engine_id=str(_required(params, "remote_engine_id")),
            host=str(_required(params, "remote_host")),
            port=int(_required(params, "remote_port")),
            blocks=tuple(groups[0]),
            cached_tokens=int(params.get("remote_prefill_cached_tokens") or 0),
        )


def _required(params: Message, name: str) -> Any:
    value = params.get(name)
    if value is None:
        raise KeyError(name)
    return value


@dataclass(frozen=True)
class Received:
    contents: tuple[int, ...]
    block_size: int
    first_contact: bool


class Peers:
    """The prefill servers that a decode server has spoken to.

    Handshakes take turns, as vLLM makes them on one thread; requests for one engine share an attempt.
    """

    def __init__(self, own: Identity, timeout_s: float, enforce_hash: bool, cleans_up: bool) -> None:
        self._own = own
        self._timeout_s = timeout_s
        self._enforce_hash = enforce_hash
        self._cleans_up = cleans_up
        self._turn = asyncio.Lock()
        self._known: dict[str, Message] = {}
        self._attempts: dict[str, asyncio.Task[Message]] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def fetch(self, hand_off: HandOff, prompt_tokens: int) -> Received:
        """Raises TransferFailed or EngineFatal."""
        first_contact = hand_off.engine_id not in self._known
        peer = self._known.get(hand_off.engine_id) or await self._share_handshake(hand_off)
        block_size = int(peer["block_size"])
        self._check_geometry(peer)
        if len(hand_off.blocks) * block_size < prompt_tokens:
            raise EngineFatal("AssertionError: fewer remote blocks than the prompt needs")
        message = {
            "op": "read",
            "engine_id": hand_off.engine_id,
            "request_id": hand_off.request_id,
            "blocks": list(hand_off.blocks),
        }
        try:
            reply = await ask(hand_off.host, hand_off.port, message)
        except (OSError, ValueError) as error:
            raise TransferFailed(f"NIXL transfer failed: NIXL_ERR_REMOTE_DISCONNECT ({error})") from error
        if "error" in reply:
            raise TransferFailed(str(reply["error"]))
        return Received(tuple(reply["contents"]), block_size, first_contact)

    def notify(self, hand_off: HandOff, op: str) -> asyncio.Task[bool]:
        """`done` or `heartbeat`; the result is False when nobody took it."""
        message = {"op": op, "engine_id": hand_off.engine_id, "request_id": hand_off.request_id}
        return asyncio.get_running_loop().create_task(tell(hand_off.host, hand_off.port, message))

    async def _share_handshake(self, hand_off: HandOff) -> Message:
        attempt = self._attempts.get(hand_off.engine_id)
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(self._handshake(hand_off))
            self._attempts[hand_off.engine_id] = attempt
            attempt.add_done_callback(lambda done: self._forget_attempt(hand_off.engine_id, done))
        return await asyncio.shield(attempt)

    def _forget_attempt(self, engine_id: str, attempt: asyncio.Task[Message]) -> None:
        self._attempts.pop(engine_id, None)
        if not attempt.cancelled():
            attempt.exception()

    async def _handshake(self, hand_off: HandOff) -> Message:
        async with self._turn:
            peer = await self._ask_who_listens(hand_off)
        self._check_identity(peer, hand_off.engine_id)
        self._known[hand_off.engine_id] = peer
        return peer

    async def _ask_who_listens(self, hand_off: HandOff) -> Message:
        """ZMQ connects behind the scenes, so that a refused connection looks like silence: the full time passes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                return await ask(hand_off.host, hand_off.port, {"op": "handshake"})
        except (OSError, ValueError, TimeoutError) as error:
            await asyncio.sleep(max(0.0, deadline - loop.time()))
            if self._cleans_up:
                self._keep_turn_busy()
            raise TransferFailed(f"NIXL handshake failed: zmq.error.Again ({error})") from error

    def _keep_turn_busy(self) -> None:
        task = asyncio.get_running_loop().create_task(self._clean_up())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _clean_up(self) -> None:
        async with self._turn:
            await asyncio.sleep(self._timeout_s)

    def _check_identity(self, peer: Message, expected: str) -> None:
        if "error" in peer:
            raise TransferFailed(str(peer["error"]))
        if self._enforce_hash and peer.get("hash") != self._own.compatibility_hash:
            raise TransferFailed(
                f"NIXL compatibility hash mismatch. Local: {self._own.compatibility_hash}, Remote: {peer.get('hash')}. "
                "Prefill and decode instances have incompatible configurations."
            )
        if peer.get("engine_id") != expected:
            raise TransferFailed(
                f"Remote NIXL agent engine ID mismatch. Expected {expected}, received {peer.get('engine_id')}."
            )

    def _check_geometry(self, peer: Message) -> None:
        local, remote = self._own.block_size, int(peer["block_size"])
        if local % remote:
            raise TransferFailed(f"Local block size {local} is not divisible by remote block size {remote}")
        if peer["dtype"] != self._own.dtype:
            raise TransferFailed("AssertionError: KV block_len differs between local and remote")
        if int(peer["tp_size"]) > self._own.tensor_parallel:
            raise TransferFailed("AssertionError: decode TP size must not be below prefill TP size")


async def ask(host: str, port: int, message: Message) -> Message:
    """Raises OSError when nobody answers, ValueError when what comes back is not ours."""
    reader, writer = await asyncio.open_connection(host, port, limit=_MAX_LINE_BYTES)
    try:
        writer.write(orjson.dumps(message) + b"\n")
        line = await reader.readline()
        if not line:
            raise ConnectionResetError("closed without an answer")
        reply = orjson.loads(line)
        if not isinstance(reply, dict):
            raise ValueError("not an answer of a side channel")
        return reply
    finally:
        writer.close()


async def tell(host: str, port: int, message: Message) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        writer.write(orjson.dumps(message) + b"\n")
        await writer.drain()
    writer.close()
    return True
