"""Keeps retries a small part of the traffic, so that failing servers are not loaded more because they fail."""

from typing import Final

RESERVE: Final = 20.0
PER_REQUEST: Final = 0.2


class Budget:
    """Every request pays in a fifth of a retry; some are there from the start, and no more are ever saved."""

    def __init__(self, reserve: float = RESERVE) -> None:
        self._reserve = reserve
        self._left = reserve

    def deposit(self) -> None:
        self._left = min(self._reserve, self._left + PER_REQUEST)

    def withdraw(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True
