"""A circuit per server: after some failures in a row it is left alone for a while, then tried with one request.

Only failures that are the server's own count: a connection that is refused, or broken before an answer, a 5xx, our time
limits. A client's bad request, also one that is refused in a stream or by breaking it, backpressure (429, 503), what an
engine cannot do (501), a client that leaves, and a 500 for pictures that the server was to fetch from where a client
said, say nothing about the server.

Some requests make any engine answer 500, and one client may send nothing else. So a server that answers, though with
errors, is still the last resort: no one is refused while it might serve them. So is one that took no connection until
the request that probes: it was most likely started again, and the answer to that request may take minutes.
"""

from dataclasses import dataclass
from typing import Final, Literal

State = Literal["closed", "open", "half-open"]
Failure = Literal["refused", "answered", "other"]
"""It took no connection; it said so itself; anything else."""
FAILURES_TO_OPEN: Final = 5
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 15.0


@dataclass(slots=True)
class Circuit:
    """Times are of the caller's monotonic clock."""

    failures: int = 0
    """In a row."""
    opened_at: float | None = None
    pause_s: float = FIRST_PAUSE_S
    probing: bool = False
    last_error: str = ""
    how: Failure = "other"
    """The last failure."""
    answers: bool = False
    """The last failure was an answer, or since it took no connection it took the one that probes."""

    def state(self, now: float) -> State:
        if self.opened_at is None:
            return "closed"
        return "half-open" if now - self.opened_at >= self.pause_s else "open"

    def allows(self, now: float) -> bool:
        if self.opened_at is None:
            return True
        return now - self.opened_at >= self.pause_s and not self.probing

    def retry_in_s(self, now: float) -> float:
        return 0.0 if self.opened_at is None else max(0.0, self.opened_at + self.pause_s - now)

    def begin(self) -> bool:
        """A request is about to be sent. True: it is the one that probes, and must end in one of the calls below."""
        if self.opened_at is None:
            return False
        self.probing = True
        return True

    def succeed(self) -> None:
        self.failures = 0
        self.opened_at = None
        self.pause_s = FIRST_PAUSE_S
        self.probing = False
        self.last_error = ""
        self.answers = False

    def connected(self) -> None:
        """The probe was let in: where that was all that failed, others need not wait until it is answered."""
        self.answers = self.answers or self.how == "refused"

    def fail(self, now: float, error: str, *, how: Failure = "other") -> None:
        self.last_error = error
        self.how = how
        self.answers = how == "answered"
        self.failures += 1
        if self.opened_at is not None:
            if now - self.opened_at >= self.pause_s:
                self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)
                self.opened_at = now
        elif self.failures >= FAILURES_TO_OPEN:
            self.opened_at = now
        self.probing = False

    def abandon(self) -> None:
        """The probe ended without telling anything."""
        self.probing = False
