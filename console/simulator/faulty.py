"""A reply on its way through the faults of its request: late, cut, compressed, broken off, or not at all."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import orjson

from .faults import Faults
from .wire import JSON, Connection, Headers, HttpRequest, Reply

ERROR_EVENT = (
    b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}'
    b"\n\ndata: [DONE]\n\n"
)


class _Deed(NamedTuple):
    kind: Literal["start", "write", "finish", "break"]
    status: int = 0
    headers: Headers = []
    length: int | None = None
    data: bytes = b""


def needs_faulty_reply(faults: Faults) -> bool:
    """Whether a reply must go through `FaultyReply`, which costs a task, rather than straight to the socket."""
    return bool(
        faults.header_delay_s
        or faults.first_chunk_delay_s
        or faults.chunk_delay_s
        or faults.role_first_s
        or faults.never_answer
        or faults.comment_lines
        or faults.split_writes
        or faults.gzip != "never"
        or faults.stall_after_chunks is not None
        or faults.reset_after_chunks is not None
        or faults.done_after_chunks is not None
        or faults.error_after_chunks is not None
    )


def answer_from_script(reply: Reply) -> bool:
    """Gives the answer that the faults prescribe; False when they prescribe none."""
    script = reply.faults.answer
    if script is None:
        return False
    body = script.get("body", {})
    headers = [(str(name), str(value)) for name, value in script.get("headers", {}).items()]
    is_text = isinstance(body, str)
    content_type = "text/plain; charset=utf-8" if is_text else JSON
    if any(name.lower() == "content-type" for name, _ in headers):
        content_type = ""
    reply.full(int(script.get("status", 200)), body.encode() if is_text else orjson.dumps(body), content_type, headers)
    return True


def answer_probe(fault: dict[str, Any], reply: Reply, answer: Callable[[], None]) -> None:
    """Calls `answer`, or does what the fault of this probe says instead."""
    if fault.get("never_answer"):
        return

    def deed() -> None:
        if reply.done:
            return
        if "status" not in fault and "body" not in fault:
            answer()
            return
        status, body = fault.get("status", 200), fault.get("body", "")
        if isinstance(body, str):
            reply.full(status, body.encode(), "text/plain; charset=utf-8" if body else "")
        else:
            reply.json(status, body)

    delay_s = fault.get("delay_s")
    if delay_s:
        asyncio.get_running_loop().call_later(delay_s, deed)
    else:
        deed()


class FaultyReply(Reply):
    def __init__(self, connection: Connection, request: HttpRequest, faults: Faults) -> None:
        super().__init__(connection, request)
        self._faults = faults
        self._deeds: asyncio.Queue[_Deed] = asyncio.Queue()
        self._chunks = 0
        self._gzip: zlib._Compress | None = None
        self._over = False
        self._pump = asyncio.get_running_loop().create_task(self._run())

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        self._deeds.put_nowait(_Deed("start", status, headers, length))

    def write(self, data: bytes) -> None:
        if data:
            self._deeds.put_nowait(_Deed("write", data=data))

    def finish(self) -> None:
        self._deeds.put_nowait(_Deed("finish"))

    def break_off(self) -> None:
        self._deeds.put_nowait(_Deed("break"))

    def closed_by_client(self) -> None:
        self._pump.cancel()
        super().closed_by_client()

    async def _run(self) -> None:
        if self._faults.never_answer:
            return
        while not self._over:
            deed = await self._deeds.get()
            if deed.kind == "start":
                await self._begin(deed)
            elif deed.kind == "write":
                await self._pass_on(deed.data)
            elif deed.kind == "finish":
                await self._complete()
                return
            else:
                super().break_off()
                return

    async def _begin(self, deed: _Deed) -> None:
        faults = self._faults
        await asyncio.sleep(faults.header_delay_s)
        if faults.reset_after_chunks == 0:
            self._break_off()
            return
        headers, length = deed.headers, deed.length
        if self._compresses():
            self._gzip = zlib.compressobj(wbits=31)
            headers, length = [*headers, ("content-encoding", "gzip"), ("vary", "accept-encoding")], None
        self._send_head(deed.status, headers, length)
        await asyncio.sleep(faults.first_chunk_delay_s)

    def _compresses(self) -> bool:
        accepts = "gzip" in self.request.headers.get("accept-encoding", "")
        return self._faults.gzip == "always" or (self._faults.gzip == "accepted" and accepts)

    async def _pass_on(self, data: bytes) -> None:
        faults = self._faults
        if self._ends_here():
            return
        if self._chunks and faults.chunk_delay_s:
            await asyncio.sleep(faults.chunk_delay_s)
        if self._chunks == 1 and faults.role_first_s:
            await asyncio.sleep(faults.role_first_s)
        if data.startswith(b"data:"):
            data = b": comment\n\n" * faults.comment_lines + data
        await self._put(data)
        self._chunks += 1
        if self._chunks == faults.reset_after_chunks:
            # What was written before the reset reaches the client.
            await asyncio.sleep(0.02)
            self._break_off()

    def _ends_here(self) -> bool:
        """Whether the stream stops before the next chunk."""
        faults = self._faults
        if self._chunks == faults.stall_after_chunks:
            self._over = True
            return True
        for limit, last in ((faults.done_after_chunks, b"data: [DONE]\n\n"), (faults.error_after_chunks, ERROR_EVENT)):
            if self._chunks == limit:
                self._over = True
                self._send(last)
                self._leave()
                self._end()
                return True
        return False

    async def _complete(self) -> None:
        if self._gzip is not None:
            self._send(self._gzip.flush())
        self._end()

    async def _put(self, data: bytes) -> None:
        if self._gzip is not None:
            data = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        size = self._faults.split_writes
        if not size:
            self._send(data)
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        for start in range(0, len(framed), size):
            self.connection.write(framed[start : start + size])
            await asyncio.sleep(0)

    def _break_off(self) -> None:
        self._over = True
        self._leave()
        self.done = True
        self.connection.break_off(self, reset=True)

    def _leave(self) -> None:
        """The engine need not go on: nobody will get the rest."""
        if self.on_close is not None:
            self.on_close()
