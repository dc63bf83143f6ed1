"""Whether a server does the work it was given. Silent: it has work, and for long no token and no answer came.

What an engine whose core is stuck goes on saying is no sign of life: the heads of its streams and their first events,
refusals, `/health`, its model card, counts of tokens.
"""

from typing import Final

TRY_AGAIN_S: Final = 15.0
"""After the last client of a silent server gave up, nothing is sent there for so long; then one request at a time,
until it brings a token."""


class Life:
    """Of one server. Times are of the monotonic clock."""

    __slots__ = ("began_at", "given_up_at", "held", "moved_at", "streams")

    def __init__(self) -> None:
        self.moved_at = 0.0
        """When a token or a whole answer last came."""
        self.began_at = 0.0
        """When work began there while it had none."""
        self.given_up_at = 0.0
        """When a request last left it while it was silent."""
        self.streams = 0
        """Under way, which show what it does token by token."""
        self.held = 0
        """Of these, those that it may not go on with before their clients have read what they were sent."""

    def is_silent(self, now: float, *, works: bool, is_chosen: bool = False, limit_s: float) -> bool:
        """`works`: it has something to do now. `is_chosen`: it will, once a prefill server is done. `limit_s`: how long
        that may take to show."""
        if self.given_up_at > self.moved_at:
            return works or is_chosen or now - self.given_up_at < TRY_AGAIN_S
        return works and now - max(self.moved_at, self.began_at) > limit_s
