"""HTTP/1.1 as bytes: the head of a request, and the decoding of an answer's body. No sockets here."""

import re
from typing import Final

import httptools

Headers = list[tuple[bytes, bytes]]
MOST_STATUS: Final = 599
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 4096
PLAIN_TARGET: Final = re.compile(r"[\x21-\x7e]+")
HEX_DIGITS: Final = b"0123456789abcdefABCDEF"
REMEMBERED_HEADS: Final = 64
REMEMBERED_HEAD_BYTES: Final = 2048
"""The longest head that is remembered."""


class Malformed(ValueError):
    """These bytes are not an HTTP answer."""


def request_head(method: str, target: str, headers: Headers, length: int | None) -> bytes:
    """Raises ValueError for what would end a line: a server would take the rest for another request."""
    if not PLAIN_TARGET.fullmatch(target):
        raise ValueError(f"not the target of a request: {target[:200]!r}")
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1")]
    lines += [name + b": " + value for name, value in headers]
    if length is not None:
        lines.append(b"content-length: %d" % length)
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise ValueError("a header holds the end of a line")
    return head + b"\r\n\r\n"


class Head:
    """Status and headers of one answer; what follows them stays outside."""

    __slots__ = ("_buffer", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self._buffer = b""
        self.headers: Headers = []
        self.status = 0
        self.keep_alive = False

    def feed(self, data: bytes) -> bytes | None:
        """Bytes after the head, or None while it is incomplete. Interim (1xx) answers are passed over."""
        data = self._buffer + data
        while (end := data.find(b"\r\n\r\n") + 4) >= 4:
            read, data = _read_head(data[:end]), data[end:]
            if not 100 <= read.status < 200:
                self._buffer = b""
                self.status, self.keep_alive, self.headers = read.status, read.keep_alive, read.headers.copy()
                return data
        if len(data) > MAX_HEAD_BYTES:
            raise Malformed("the head of the answer is too long")
        self._buffer = data
        return None

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class _ReadHead:
    """A whole head, read by httptools."""

    __slots__ = ("headers", "keep_alive", "status")

    def __init__(self, data: bytes) -> None:
        self.headers: Headers = []
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise Malformed(str(error)) from error
        self.status: int = parser.get_status_code()
        if self.status > MOST_STATUS:
            raise Malformed(f"there is no status {self.status}")
        self.keep_alive: bool = parser.should_keep_alive()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))


_read_heads: Final[dict[bytes, _ReadHead]] = {}
"""A server's heads are the same for as long as their date is, which is a second."""


def _read_head(data: bytes) -> _ReadHead:
    read = _read_heads.get(data)
    if read is None:
        read = _ReadHead(data)
        if len(data) > REMEMBERED_HEAD_BYTES:
            return read
        if len(_read_heads) >= REMEMBERED_HEADS:
            _read_heads.clear()
        _read_heads[data] = read
    return read


class Decoder:
    """Takes a body's bytes as they come. `done` once it is complete."""

    __slots__ = ("at_boundary", "done", "ends_at_eof")

    def __init__(self, *, done: bool = False, at_boundary: bool = False, ends_at_eof: bool = False) -> None:
        self.done = done
        self.at_boundary = at_boundary
        """The next byte begins a chunk: whoever knows chunks may take whole ones past the decoder."""
        self.ends_at_eof = ends_at_eof

    def step(self, data: bytes, at: int) -> tuple[bytes, int]:
        """The next piece of the body in `data` from `at` on, and where to go on. It always goes on, until `done`: what
        follows then belongs to no answer."""
        raise NotImplementedError


class Sized(Decoder):
    __slots__ = ("_left",)

    def __init__(self, length: int) -> None:
        super().__init__(done=length == 0)
        self._left = length

    def step(self, data: bytes, at: int) -> tuple[bytes, int]:
        end = min(at + self._left, len(data))
        piece = data[at:end]
        self._left -= len(piece)
        self.done = self._left == 0
        return piece, end


class UntilClosed(Decoder):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(ends_at_eof=True)

    def step(self, data: bytes, at: int) -> tuple[bytes, int]:
        return data[at:], len(data)


class Chunked(Decoder):
    """Any cut of a chunked body."""

    __slots__ = ("_in_trailer", "_left", "_line")

    def __init__(self) -> None:
        super().__init__(at_boundary=True)
        self._line = b""
        """The beginning of a size line or trailer."""
        self._left = 0
        """Bytes of the present chunk, the two of its closing line break included."""
        self._in_trailer = False

    def step(self, data: bytes, at: int) -> tuple[bytes, int]:
        if self._left:
            return self._take_data(data, at)
        end = data.find(b"\n", at)
        if end < 0:
            return self._keep_line(data, at)
        line, self._line = (self._line + data[at:end]).strip(), b""
        if self._in_trailer:
            self.done = not line
        else:
            self._begin_chunk(line)
        self.at_boundary = False
        return b"", end + 1

    def _take_data(self, data: bytes, at: int) -> tuple[bytes, int]:
        here = min(self._left, len(data) - at)
        text = max(0, min(here, self._left - 2))
        self._left -= here
        self.at_boundary = not self._left
        return data[at : at + text], at + here

    def _begin_chunk(self, line: bytes) -> None:
        size = _size(line)
        self._in_trailer = size == 0
        self._left = size + 2 if size else 0

    def _keep_line(self, data: bytes, at: int) -> tuple[bytes, int]:
        self._line += data[at:]
        if len(self._line) > MAX_LINE_BYTES:
            raise Malformed("a chunk of the answer has no size")
        self.at_boundary = False
        return b"", len(data)


def _size(line: bytes) -> int:
    """Of a chunk, in bytes; its extensions are passed over."""
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not 0 < len(digits) <= 8 or digits.strip(HEX_DIGITS):
        raise Malformed("a chunk of the answer has no size")
    return int(digits, 16)


def decoder_for(head: Head, method: str) -> Decoder:
    if method == "HEAD" or head.status in (204, 304):
        return Sized(0)
    encoding = head.get(b"transfer-encoding")
    if encoding is not None and b"chunked" in encoding.lower():
        return Chunked()
    length = head.get(b"content-length")
    return Sized(int(length)) if length is not None else UntilClosed()


def unframed(frames: bytes) -> bytes:
    """The data of whole chunks."""
    decoder, parts, at = Chunked(), [], 0
    while at < len(frames):
        part, at = decoder.step(frames, at)
        parts.append(part)
    return b"".join(parts)
