"""Reading a server's log: new lines as they come, and the last part for people. Never the whole file."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from console.launch.contracts import LogTail

READ_LIMIT_BYTES = 4 << 20
"""Most that one look reads; a log that grew more is caught up with in the next looks."""
LINE_LIMIT_BYTES = 64 << 10
TAIL_LIMIT_BYTES = 1 << 20
MASK = "***"
_SECRETS = re.compile(r"(?<=Bearer )[^\s\"',]{6,}|\bhf_[A-Za-z0-9]{16,}|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")


@dataclass
class LogReader:
    """Follows one log from `offset`; a line is given out once its end is there, so that no character is cut."""

    path: Path
    offset: int = 0

    def new_lines(self) -> list[str]:
        """Complete lines since the last call, without blank ones. A carriage return ends a line as well."""
        chunk = _read(self.path, self.offset, READ_LIMIT_BYTES)
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end == 0 and len(chunk) >= LINE_LIMIT_BYTES:
            end = len(chunk)
        self.offset += end
        return list(_lines(chunk[:end]))

    def rest(self) -> list[str]:
        """What the writer left without a line end when it ended."""
        chunk = _read(self.path, self.offset, LINE_LIMIT_BYTES)
        self.offset += len(chunk)
        return list(_lines(chunk))

    def skip_to_last(self, limit_bytes: int) -> None:
        """Gives up on older lines when more than this waits, as after a long time without an agent."""
        self.offset = max(self.offset, _size(self.path) - limit_bytes)

    @property
    def grew_at(self) -> float | None:
        """Unix time at which something was last written; None before the first byte."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime if status.st_size else None


def tail(path: Path, max_bytes: int, secrets: Iterable[str]) -> LogTail:
    """The last `max_bytes` (at most 1 MiB), cut at a line. An empty text when there is no log."""
    size = _size(path)
    wanted = max(1, min(max_bytes, TAIL_LIMIT_BYTES))
    start = max(0, size - wanted)
    data = _read(path, start, wanted)
    if start:
        data = data[data.find(b"\n") + 1 :]
    text = collapse_returns(data.decode(errors="replace"))
    return LogTail(path=str(path), size_bytes=size, text=mask(text, secrets), truncated=start > 0)


def collapse_returns(text: str) -> str:
    """What a terminal would show: of a progress bar drawn over itself, the last state."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def mask(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted({value for value in secrets if value}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _SECRETS.sub(MASK, text)


def _lines(data: bytes) -> Iterator[str]:
    for line in re.split(rb"[\r\n]+", data):
        if line.strip():
            yield line[:LINE_LIMIT_BYTES].decode(errors="replace")


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(offset)
            return log.read(limit)
    except FileNotFoundError:
        return b""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
