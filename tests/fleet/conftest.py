"""What the console sends to hosts, caught at the one seam that posts to the broker."""

from typing import Any

import pytest

from console.launch import remote


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any], str]]:
    """(task, arguments, queue) of everything posted after commit."""
    posted: list[tuple[str, list[Any], str]] = []

    def post(task: str, args: list[Any], queue: str) -> bool:
        posted.append((task, args, queue))
        return True

    monkeypatch.setattr(remote, "_post", post)
    return posted
