"""How an exchange sees its client, whoever holds the socket: `routing.app` (ASGI) or `routing.uvicorn_protocol`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from routing.bodies import Raw
from routing.http1 import Headers


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


class Reply(Protocol):
    """The answer, in order: `start` once, `write` any number of times, `finish` once; or `abort` at any time.

    None of them waits. `paused` says that the client reads slower than we write.
    """

    started: bool
    paused: bool
    on_disconnect: Callable[[], None] | None
    """Called once, when the client leaves before `finish`."""
    on_pause: Callable[[bool], None] | None
    """Called when `paused` changes."""

    def start(self, status: int, headers: Headers) -> None: ...

    def write(self, data: bytes) -> None: ...

    def write_frames(self, frames: bytes) -> None:
        """`write` of the data of whole HTTP chunks, given as they came."""

    def flush(self) -> None:
        """Writes are gathered for one turn of the event loop; this sends what is there now."""

    def descriptor(self) -> int | None:
        """Of a socket that whole HTTP chunks can be written to in our place now; None when there is none, or when
        something of ours is still to be sent."""

    def finish(self) -> None: ...

    def abort(self) -> None:
        """Breaks the connection, so that the client cannot take the answer for complete."""
