"""The workers of one router ask each other for their figures, so that any of them can answer for all.

A question is a datagram in the other's inbox that carries one end of a new connection. The answer comes over that and
ends with it: it may be of any length, and one that comes too late meets nobody.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

ANSWER_WITHIN_S = 0.8
PART_BYTES = 65536
Inbox = tuple[socket.socket, socket.socket]
"""The end that its worker reads, and the end that the others write to."""


def make_inboxes(workers: int) -> list[Inbox]:
    """To be made before the workers are forked, and kept: who replaces a worker reads its inbox."""
    inboxes = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(workers)]
    for inbox in inboxes:
        for end in inbox:
            end.setblocking(False)
    return inboxes


class Colleagues:
    """The other workers, as one of them sees them."""

    def __init__(self, worker: int, inboxes: Sequence[Inbox], figures: Callable[[], bytes]) -> None:
        """`figures` gives this worker's answer."""
        self._inbox = inboxes[worker][0]
        self._others = {number: inbox[1] for number, inbox in enumerate(inboxes) if number != worker}
        self._figures = figures
        self._answering: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        """On the running event loop, until `close`."""
        asyncio.get_running_loop().add_reader(self._inbox.fileno(), self._asked)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())
        for task in self._answering:
            task.cancel()

    async def ask(self) -> dict[int, bytes]:
        """The answers by the workers' numbers; empty of one who gave none in time."""
        answers = await asyncio.gather(*map(self._ask, self._others.values()))
        return dict(zip(self._others, answers, strict=True))

    async def _ask(self, inbox: socket.socket) -> bytes:
        """Empty when none came; cut short when the other died while it wrote."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        with mine:
            try:
                with theirs:
                    socket.send_fds(inbox, [b"?"], [theirs.fileno()])
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    return await _read_to_end(mine)
            except OSError:  # A full inbox, or time is up.
                return b""

    def _asked(self) -> None:
        try:
            _, descriptors, _, _ = socket.recv_fds(self._inbox, 1, 1)
        except BlockingIOError:
            return
        for descriptor in descriptors:
            task = asyncio.get_running_loop().create_task(self._answer(socket.socket(fileno=descriptor)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, asker: socket.socket) -> None:
        with asker:
            asker.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_sendall(asker, self._figures())
            except OSError:
                return  # Who asked waits no longer.


async def _read_to_end(source: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    parts: list[bytes] = []
    while part := await loop.sock_recv(source, PART_BYTES):
        parts.append(part)
    return b"".join(parts)
