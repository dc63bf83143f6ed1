"""A request's clock: milliseconds since it was read in full, on the monotonic clock."""

import time


class Clock:
    __slots__ = ("zero_s",)

    def __init__(self) -> None:
        self.zero_s = time.monotonic()

    def now_ms(self) -> float:
        return (time.monotonic() - self.zero_s) * 1e3

    def ms_at(self, monotonic_s: float) -> float:
        return (monotonic_s - self.zero_s) * 1e3
