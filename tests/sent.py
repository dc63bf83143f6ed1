"""What the console posts to queues, caught at the one seam where it leaves. Import `sent` where a test uses it."""

from typing import Any

import pytest

from console.launch import queueing

Sent = list[tuple[str, list[Any], str]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """(task, arguments, queue) of everything posted after commit."""
    posted: Sent = []

    def post(task: str, args: list[Any], queue: str, expires_s: float | None = None) -> bool:
        posted.append((task, args, queue))
        return True

    monkeypatch.setattr(queueing, "post", post)
    return posted
