"""What was received, for the tests that ask what each leg of a request saw."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import orjson

from .wire import HttpRequest

MAX_RECORDS = 5000


@dataclass(eq=False)
class Record:
    """One received request, as GET /simulator/requests shows it."""

    request: HttpRequest
    at: float
    status: int | None = None
    disconnected: bool = False
    disconnected_at: float | None = None

    def as_json(self) -> dict[str, Any]:
        try:
            body = orjson.loads(self.request.body) if self.request.body else None
        except ValueError:
            body = self.request.body.decode("utf-8", "replace")
        return {
            "method": self.request.method,
            "path": self.request.path,
            "query": self.request.query,
            "headers": self.request.headers,
            "body": body,
            "at": self.at,
            "peer": self.request.peer,
            "status": self.status,
            "disconnected": self.disconnected,
            "disconnected_at": self.disconnected_at,
        }


class Recorder:
    """The latest requests, oldest first."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=MAX_RECORDS)

    def add(self, request: HttpRequest) -> Record:
        record = Record(request, time.time())
        self._records.append(record)
        return record

    def as_json(self) -> list[dict[str, Any]]:
        return [record.as_json() for record in self._records]

    def clear(self) -> None:
        self._records.clear()
