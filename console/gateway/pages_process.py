"""The process that serves pages, API and live sockets, seen from the process that listens.

Pages compute; a stream's next token must not wait for that. In one process it would, for Python's lock.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from console.gateway.passing import Channel

log = logging.getLogger(__name__)

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
RESTART_AFTER_S = 0.5
STARTS_WITHIN_S = 20.0
"""A connection that came meanwhile is kept so long, then told to come back."""
MAX_KEPT = 500
ENDS_WITHIN_S = 3.0
SILENT_LIMIT_S = 60.0
"""It says a word every second. One that hangs is killed, and what it did not take goes to the next."""
SILENT_AT_FIRST_LIMIT_S = 600.0
"""Before its first word. A machine on which a start takes minutes would never have pages if each were cut short."""
_WORDS = b"The pages are not there yet. Try again in a moment.\n"
COME_BACK = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 2\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_WORDS), _WORDS)
)


class PagesProcess:
    """Keeps it running, and passes connections on to it. `adopt` takes one that it passes back."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        """What the process last said of itself; empty while it is not there."""
        self.restarts = 0
        self.adopt: Callable[[socket.socket, bytes], None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._kept: deque[tuple[int, bytes, asyncio.TimerHandle]] = deque()
        self._ends = False
        self._ends_at = 0.0
        self._word_at = 0.0

    @property
    def is_ready(self) -> bool:
        return bool(self.figures)

    def pass_on(self, descriptor: int, data: bytes) -> None:
        """Takes `descriptor` over. While the process starts, connections wait for it."""
        under_way = len(self._kept) + (self._channel.on_their_way if self._channel is not None else 0)
        if self._ends or under_way >= MAX_KEPT:
            send_away(descriptor)
        elif self._channel is not None and self.is_ready:
            self._channel.pass_on(descriptor, data)
        else:
            timer = asyncio.get_running_loop().call_later(STARTS_WITHIN_S, self._give_up_oldest)
            self._kept.append((descriptor, data, timer))

    async def follow(self) -> None:
        """Starts it, and starts it again when it ends. Returns after `terminate`."""
        while not self.is_over():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with theirs:
                    self._process = await start(theirs)
                if self.is_over():  # Told while it started.
                    send(self._process, signal.SIGTERM)
                self._channel = Channel(ours, self)
                code = await self._watched(self._process)
            finally:
                self._let_go(ours)
            if self.is_over():
                return
            self.restarts += 1
            log.error("the pages' process ended with status %s and starts again", code)
            await asyncio.sleep(RESTART_AFTER_S)

    async def _watched(self, process: asyncio.subprocess.Process) -> int:
        """Its exit status, once it has ended or was killed for its silence."""
        self._word_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(SILENT_LIMIT_S / 10):
                    return await process.wait()
            except TimeoutError:
                limit_s = SILENT_LIMIT_S if self.is_ready else SILENT_AT_FIRST_LIMIT_S
                if time.monotonic() - self._word_at > limit_s and not self._ends:
                    log.error("the pages' process has said nothing for %g s and is killed", limit_s)
                    send(process, signal.SIGKILL)

    def is_over(self) -> bool:
        """For good: `terminate` was called."""
        return self._ends

    def terminate(self) -> None:
        """It closes its sockets and ends; connections for it are sent away from now on."""
        if not self._ends:
            self._ends_at = time.monotonic()
        self._ends = True
        while self._kept:
            self._give_up_oldest()
        if self._process is not None:
            send(self._process, signal.SIGTERM)

    async def stop(self) -> None:
        """Returns when it has ended."""
        self.terminate()
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(max(0.1, self._ends_at + ENDS_WITHIN_S - time.monotonic())):
                await process.wait()
        except TimeoutError:
            log.error("the pages' process did not end within %g s and is killed", ENDS_WITHIN_S)
            send(process, signal.SIGKILL)
            await process.wait()

    # Receiver

    def connection(self, client: socket.socket, first_bytes: bytes) -> None:
        if self.adopt is None or self._ends:
            client.close()
        else:
            self.adopt(client, first_bytes)

    def word(self, word: dict[str, Any]) -> None:
        self.figures = word
        self._word_at = time.monotonic()
        while self._kept and self._channel is not None:
            descriptor, data, timer = self._kept.popleft()
            timer.cancel()
            self._channel.pass_on(descriptor, data)

    def closed(self) -> None:
        self.figures = {}
        self._channel = None

    def returned(self, descriptor: int, first_bytes: bytes) -> None:
        self.pass_on(descriptor, first_bytes)

    def _let_go(self, ours: socket.socket) -> None:
        if self._channel is not None:
            self._channel.close()
        ours.close()

    def _give_up_oldest(self) -> None:
        descriptor, _, timer = self._kept.popleft()
        timer.cancel()
        send_away(descriptor)


async def start(end: socket.socket) -> asyncio.subprocess.Process:
    number = end.fileno()
    return await asyncio.create_subprocess_exec(
        sys.executable, str(MANAGE), "pages", "--channel", str(number), pass_fds=(number,), env=os.environ.copy()
    )


def send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Harmless when it has ended, even in this moment."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


def send_away(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as client, contextlib.suppress(OSError):
        client.send(COME_BACK)
