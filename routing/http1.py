"""HTTP/1.1 as bytes: the head of a request, and the decoding of an answer's body. No sockets here."""

import re
from typing import Protocol

import httptools

Headers = list[tuple[bytes, bytes]]
MAX_HEAD_BYTES = 64 * 1024
_HEX = re.compile(rb"[0-9a-fA-F]{1,8}")


class Malformed(ValueError):
    """These bytes are not an HTTP answer."""


def request_head(method: str, target: str, headers: Headers, length: int | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1")]
    lines += [name + b": " + value for name, value in headers]
    if length is not None:
        lines.append(b"content-length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


class Head:
    """Status and headers of one answer, read by httptools; what follows them stays outside."""

    __slots__ = ("_buffer", "_parser", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self._buffer = b""
        self.headers: Headers = []
        self.status = 0
        self.keep_alive = False
        self._parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def feed(self, data: bytes) -> bytes | None:
        """Bytes after the head, or None while it is incomplete. Interim (1xx) answers are passed over."""
        data = self._buffer + data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(data) > MAX_HEAD_BYTES:
                raise Malformed("the head of the answer is too long")
            self._buffer = data
            return None
        try:
            self._parser.feed_data(data[:end])
        except httptools.HttpParserError as error:
            raise Malformed(str(error)) from error
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200:
            self.__init__()  # type: ignore[misc]
            return self.feed(data[end:])
        self.keep_alive = self._parser.should_keep_alive()
        return data[end:]

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Decoder(Protocol):
    """Takes the bytes of a body as they come. `done` once it is complete."""

    done: bool
    ends_at_eof: bool

    def feed(self, data: bytes) -> list[bytes]: ...


class Sized:
    ends_at_eof = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def feed(self, data: bytes) -> list[bytes]:
        if len(data) > self._left:
            raise Malformed("more bytes than the answer's content-length")
        self._left -= len(data)
        self.done = self._left == 0
        return [data]


class UntilClosed:
    done = False
    ends_at_eof = True

    def feed(self, data: bytes) -> list[bytes]:
        return [data]


class Chunked:
    """Any cut of a chunked body. `at_boundary`: the next byte begins a chunk."""

    ends_at_eof = False

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        self.done = False
        self.at_boundary = True

    def feed(self, data: bytes) -> list[bytes]:
        parts: list[bytes] = []
        data = self._buffer + data
        at = 0
        while not self.done:
            if self._left:
                at = self._take_part(data, at, parts)
                if self._left:
                    break
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self._limit_line(len(data) - at)
                break
            size = self._size(data[at:line_end])
            if size == 0:
                at = self._take_trailer(data, at)
                break
            self._left, at = size + 2, line_end + 2
        self._buffer = data[at:]
        self.at_boundary = not self._buffer and not self._left
        return parts

    def _take_part(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """The chunk's data; its closing line break counts as two bytes more."""
        here = min(self._left, len(data) - at)
        text = max(0, min(here, self._left - 2))
        if text:
            parts.append(data[at : at + text])
        self._left -= here
        return at + here

    def _take_trailer(self, data: bytes, at: int) -> int:
        """The last chunk ends with an empty line, after trailers that nobody reads."""
        if data.startswith(b"\r\n", data.find(b"\r\n", at) + 2):
            self.done = True
            return data.find(b"\r\n", at) + 4
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            self._limit_line(len(data) - at, MAX_HEAD_BYTES)
            return at
        self.done = True
        return end + 4

    def _size(self, line: bytes) -> int:
        match = _HEX.match(line)
        if match is None:
            raise Malformed("a chunk of the answer has no size")
        return int(match[0], 16)

    def _limit_line(self, length: int, limit: int = 1024) -> None:
        if length > limit:
            raise Malformed("a chunk of the answer has no size")


def decoder_for(head: Head, method: str) -> Decoder:
    if method == "HEAD" or head.status in (204, 304):
        return Sized(0)
    encoding = head.get(b"transfer-encoding")
    if encoding is not None and b"chunked" in encoding.lower():
        return Chunked()
    length = head.get(b"content-length")
    return Sized(int(length)) if length is not None else UntilClosed()
