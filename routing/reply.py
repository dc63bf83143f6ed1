"""How an exchange sees its client, whoever holds the socket: `routing.asgi` or `routing.front`."""

from collections.abc import Callable
from dataclasses import dataclass

from routing.bodies import Raw
from routing.http1 import Headers, unframed


@dataclass(slots=True)
class Request:
    """A client's request, read in full. Header names are lower case."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: Raw
    too_large: bool = False
    """The body is over the router's limit and was not read to its end."""

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Reply:
    """The answer, in order: `start` once, `write` any number of times, `finish` once; or `abort` at any time.

    None of them waits. `paused` says that the client reads slower than we write.
    """

    __slots__ = ("on_disconnect", "on_pause", "paused", "started")

    def __init__(self) -> None:
        self.started = False
        self.paused = False
        self.on_disconnect: Callable[[], None] | None = None
        """Called once, when the client leaves before `finish`."""
        self.on_pause: Callable[[bool], None] | None = None
        """Called when `paused` changes."""

    def start(self, status: int, headers: Headers) -> None:
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def write_frames(self, frames: bytes) -> None:
        """`write` of the data of whole HTTP chunks, given as they came."""
        self.write(unframed(frames))

    def flush(self) -> None:
        """Writes are gathered for one turn of the event loop; this sends what is there now."""

    def descriptor(self) -> int | None:
        """Of a socket that whole HTTP chunks can be written to in our place now; None when there is none, or when
        something of ours is still to be sent."""
        return None

    def finish(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        """Breaks the connection, so that the client cannot take the answer for complete."""
        raise NotImplementedError

    def set_paused(self, paused: bool) -> None:
        if paused is self.paused:
            return
        self.paused = paused
        if self.on_pause is not None:
            self.on_pause(paused)
