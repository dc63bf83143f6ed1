"""What a prefill server keeps for one request: used once, at once, by one decode server, never after its lease."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from routing.backend import Backend
from routing.errors import LegError
from routing.loads import take_handoff

LEASE_SHARE: Final = 0.9
"""A hand-off is used in the first nine tenths of its lease: the rest is for the decode server to ask for it."""


class HandoffTooOld(LegError):
    """It is prefilled again: read after its lease, a hand-off gives wrong text with status 200."""

    blames_server = False


class Handoff:
    """Counted on its prefill server until the cache is fetched, or its lease is over and the server drops it."""

    __slots__ = (
        "_dropped",
        "_kept_at",
        "_taken",
        "params",
        "prefill",
        "sent",
    )

    def __init__(self, prefill: Backend, params: Mapping[str, Any]) -> None:
        self.prefill = prefill
        self.params = params
        self.sent = False
        """A decode server may have it: it must not be given to another."""
        self._taken = take_handoff(prefill.load)
        self._kept_at = time.monotonic()
        self._dropped: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Nobody is known to have fetched it."""
        return not self._taken.is_given_back

    def age_s(self) -> float:
        return time.monotonic() - self._kept_at

    def check_lease(self) -> None:
        """To be called in the moment of sending. Raises `HandoffTooOld`."""
        lease_s = self.prefill.server.kv_lease_s
        if self.age_s() > lease_s * LEASE_SHARE:
            raise HandoffTooOld(
                f"the hand-off of {self.prefill.name} was {self.age_s():.1f} s old, too near its lease of {lease_s:g} s"
            )

    def fetched(self) -> None:
        self._taken.give_back()
        self._stop()

    def hold_until_lease(self) -> None:
        """From here nobody tells when it is fetched; the server drops it when its lease is over."""
        if self.is_open and self._dropped is None:
            left_s = max(0.0, self.prefill.server.kv_lease_s - self.age_s())
            self._dropped = asyncio.get_running_loop().call_later(left_s, self.fetched)

    def _stop(self) -> None:
        if self._dropped is not None:
            self._dropped.cancel()
            self._dropped = None
