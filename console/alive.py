"""A file whose time says that a process does its work: for health checks that should cost nothing.

The worker touches it at each tick, beat with each task that it sends, an agent with each report that was taken.
"""

import contextlib
from pathlib import Path

from console import env


def show() -> None:
    """Never raises. Does nothing without ALIVE_FILE."""
    if path := env.text("ALIVE_FILE"):
        with contextlib.suppress(OSError):
            Path(path).touch()
