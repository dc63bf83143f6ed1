"""Writes a request's answer: a server's as it came or our own, and errors as an SSE event once a stream has begun."""

import asyncio
from typing import Final

from routing.cors import Origins, for_own_answer
from routing.errors import Answered, Headers, LegError, Refusal, StreamError, error_event
from routing.paths import INVOCATIONS
from routing.record import Outcome, Record
from routing.reply import Reply, Request
from routing.sse import STREAMS

JSON_TYPE: Final = (b"content-type", b"application/json")
SSE_TYPE: Final = (b"content-type", b"text/event-stream; charset=utf-8")
STREAM_HEADERS: Final[Headers] = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
NOT_PASSED_BACK: Final = frozenset(
    b"connection keep-alive transfer-encoding te trailer upgrade proxy-authenticate proxy-authorization content-length"
    b" server date x-request-id cache-control x-accel-buffering".split()
)
"""Headers of a server's answer that speak of its own connection, or that the router sets itself."""


class Answer:
    """`committed`: bytes of a server's answer went out, so nothing can be tried elsewhere any more. Comment lines sent
    while waiting do not commit."""

    __slots__ = (
        "_comments",
        "_origins",
        "_record",
        "_request",
        "committed",
        "decode_name",
        "prefill_name",
        "reply",
    )

    def __init__(self, reply: Reply, request: Request, record: Record, origins: Origins) -> None:
        self.reply = reply
        self._origins = origins
        self.committed = False
        self.prefill_name = self.decode_name = ""
        self._request = request
        self._record = record
        self._comments: asyncio.TimerHandle | None = None

    # A server's answer

    def begin_stream(self, status: int, headers: Headers) -> None:
        self.committed = True
        self._start(status, [*_passed_back(headers), *STREAM_HEADERS])

    def end_stream(self) -> None:
        self.reply.finish()
        self._record.outcome = "ok"

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self._start(status, [*_passed_back(headers), (b"content-length", b"%d" % len(body))])
        self.reply.write(body)
        self.reply.finish()
        self._record.outcome = outcome_of(status)

    # Our own

    def json(self, body: bytes, status: int = 200, headers: Headers | None = None) -> None:
        self.whole(status, [JSON_TYPE, *(headers or [])], body)

    def refuse(self, refusal: Refusal) -> None:
        self._record.error = refusal.message
        if self.reply.started:
            self._end_in_band(refusal)
            return
        headers = for_own_answer(self._request, self._origins)
        if refusal.allow is not None:
            headers.append((b"allow", refusal.allow.encode()))
        if refusal.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after_s))))
        self.json(refusal.body(self._record.path), refusal.status, headers)

    def fail(self, error: LegError) -> None:
        """The last word on a request that no server completed: a server's error goes out as it came."""
        self._record.error = str(error)
        if isinstance(error, Answered) and not self.reply.started:
            self.whole(error.status, error.headers, error.body)
            return
        if isinstance(error, StreamError) and error.held is not None:
            self.begin_stream(200, error.headers)
            self.reply.write(error.held)
        if isinstance(error, StreamError) and self.committed:
            # The engine's own error event went out.
            self._record.outcome = outcome_of(error.status)
            self.reply.finish()
            return
        self.refuse(error.refusal())

    def break_off(self) -> None:
        """Closes the connection, so that nobody takes the answer for complete."""
        self.reply.abort()

    def _end_in_band(self, refusal: Refusal) -> None:
        self._record.outcome = outcome_of(refusal.status)
        # In a chat and in a completion it is the same.
        dialect = "chat" if self._record.path == INVOCATIONS else STREAMS.get(self._record.path)
        if dialect is None:
            self.break_off()
            return
        self.reply.write(error_event(refusal.status, refusal.message, refusal.kind, dialect))
        self.reply.finish()

    def _start(self, status: int, headers: Headers) -> None:
        self._record.status = status
        if not self.reply.started:
            self.reply.start(status, [*headers, *self._own_headers()])

    def _own_headers(self) -> Headers:
        record = self._record
        headers = [(b"x-request-id", record.request_id.encode())]
        if record.route is not None:
            headers += [
                (b"x-switchyard-route", record.route.encode()),
                (b"x-switchyard-reason", _header_text(record.reason)),
                (b"x-switchyard-decode", _header_text(self.decode_name)),
            ]
        if self.prefill_name:
            headers.append((b"x-switchyard-prefill", _header_text(self.prefill_name)))
        return headers

    # Waiting

    def comment_every(self, every_s: float) -> None:
        """Sends an SSE comment after each such silence until the first token, so that no proxy cuts the connection.

        From the first on the status is 200 for good, and an error can only come inside the stream.
        """
        self._comments = asyncio.get_running_loop().call_later(every_s, self._comment, every_s)

    def _comment(self, every_s: float) -> None:
        if self.committed:
            return
        if not self.reply.started:
            self._start(200, [SSE_TYPE, *STREAM_HEADERS])
        self.reply.write(b": waiting\n\n")
        self.comment_every(every_s)

    def stop_comments(self) -> None:
        if self._comments is not None:
            self._comments.cancel()
            self._comments = None


def outcome_of(status: int) -> Outcome:
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


def _passed_back(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name not in NOT_PASSED_BACK]


def _header_text(text: str) -> bytes:
    if text.isascii() and text.isprintable():
        return text[:200].encode()
    return "".join(c if " " <= c <= "~" else "?" for c in text[:200]).encode()
