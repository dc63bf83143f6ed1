"""Numbered frames for the sockets of one deployment: encoded once, queued per viewer, bounded for slow ones."""

import asyncio
from collections import deque
from dataclasses import dataclass

import orjson

from console.live.events import Event
from console.live.history import Charts, History

FRAMES_QUEUED = 30
"""About three seconds. A viewer that is further behind loses the oldest, and is told so."""
EVENTS_PER_FRAME = 1000


@dataclass(frozen=True, slots=True)
class SharedFrame:
    """One `events.Frame`, the same for all viewers but for what each has lost."""

    stream: str
    seq: int
    count: int
    body: str
    """The events as a JSON list."""

    def text(self, dropped: int) -> str:
        return f'{{"type":"events","stream":"{self.stream}","seq":{self.seq},"dropped":{dropped},"events":{self.body}}}'


class Viewer:
    """One socket's end of the fan-out. `take` is for one task only."""

    def __init__(self, user_id: int, session_key: str) -> None:
        self.user_id, self.session_key = user_id, session_key
        self._frames: deque[SharedFrame] = deque()
        self._waiting = asyncio.Event()
        self.dropped = 0
        """Events lost since the last frame that was taken."""
        self.close_code: int | None = None

    def offer(self, frame: SharedFrame) -> None:
        """Never waits: a slow viewer loses detail, never our memory."""
        if len(self._frames) >= FRAMES_QUEUED:
            self.dropped += self._frames.popleft().count
        self._frames.append(frame)
        self._waiting.set()

    def dismiss(self, close_code: int) -> None:
        self.close_code = close_code
        self._waiting.set()

    async def take(self) -> str | None:
        """The next frame as text; None once dismissed."""
        while not self._frames and self.close_code is None:
            self._waiting.clear()
            await self._waiting.wait()
        if self.close_code is not None:
            return None
        dropped, self.dropped = self.dropped, 0
        return self._frames.popleft().text(dropped)


class Channel:
    """All that is live of one deployment in this process.

    Events enter history at the moment they go out in a frame, so a snapshot taken at `seq` holds exactly the events
    up to it.
    """

    def __init__(self, stream: str) -> None:
        self.stream, self.seq = stream, 0
        self.history = History()
        self.viewers: set[Viewer] = set()
        self.last_frame_at = 0.0
        self._pending: list[Event] = []
        self._charts: tuple[int, bytes] | None = None

    def add(self, event: Event) -> None:
        self._pending.append(event)

    def flush(self, now: float) -> None:
        pending, self._pending = self._pending, []
        for start in range(0, len(pending), EVENTS_PER_FRAME):
            self._send(pending[start : start + EVENTS_PER_FRAME], now)

    def heartbeat(self, now: float) -> None:
        """A frame without events: the link and the stream behind it are well."""
        self._send([], now)

    def _send(self, events: list[Event], now: float) -> None:
        for event in events:
            self.history.add(event)
        self.seq += 1
        self.last_frame_at = now
        if not self.viewers:
            return
        frame = SharedFrame(self.stream, self.seq, len(events), orjson.dumps(events).decode())
        for viewer in self.viewers:
            viewer.offer(frame)

    def encoded_charts(self, now: float) -> bytes:
        """Shared by all who come between two frames."""
        if self._charts is None or self._charts[0] != self.seq:
            charts: Charts = self.history.charts(now)
            self._charts = (self.seq, orjson.dumps(charts))
        return self._charts[1]
