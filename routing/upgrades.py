"""What uvicorn's protocol leaves open: an offer to go on in another protocol, and a head without an end.

A request with such an offer, as `curl --http2` sends it, is served in HTTP/1.1. A server may ignore the offer. The
parser cannot: it stops after the head, and uvicorn would then serve the request without its body.

The parser keeps a head, and what follows a body, until it is whole. `LimitsHeads` limits how much that may be.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from routing.errors import error_body
from routing.http1 import Headers

OF_THE_OFFER = (b"upgrade", b"http2-settings")
MAX_HEAD_BYTES = 128 * 1024
LINGER_S = 2.0
"""How long a client may go on sending a head that was refused."""


class LimitsHeads(HttpToolsProtocol):
    """uvicorn's protocol, which ends a connection that sends more than `MAX_HEAD_BYTES` of which nothing comes: no end
    of a head, no body, no end of a request."""

    _unread_bytes = 0
    is_refused = False
    """What comes still is dropped."""
    has_read = False
    """Something came of what was received last. Set by whoever hears the parser."""

    def on_headers_complete(self) -> None:
        self.has_read = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.has_read = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.has_read = True
        super().on_message_complete()

    def count(self, size: int) -> None:
        """After so many bytes were given to the parser."""
        self._unread_bytes = 0 if self.has_read else self._unread_bytes + size
        self.has_read = False
        if self._unread_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def is_answering(self) -> bool:
        """A request was read to its end, or is answered already: nothing else can be said before that answer."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or not cycle.more_body

    def _refuse_head(self) -> None:
        if self.is_answering():
            self.transport.abort()
            return
        self.is_refused = True
        self.transport.write(_too_large())
        # Closed at once, the client would hear of a broken connection while it sends, and not see the answer.
        self.loop.call_later(LINGER_S, self.transport.close)


class IgnoresUpgrades(LimitsHeads):
    """uvicorn's protocol, which reads such a request again without the offer. Websockets it leaves to uvicorn."""

    _is_offered = False

    def _get_upgrade(self) -> bytes | None:
        """uvicorn asks the last of several Connection headers; each may name the offer."""
        offers = [value.lower() for name, value in self.headers if name == b"upgrade"]
        is_meant = b"upgrade" in map(bytes.lower, _connection_options(self.headers))
        return offers[-1] if offers and is_meant else None

    def on_headers_complete(self) -> None:
        self._is_offered = (
            self.parser.should_upgrade() and self._get_upgrade() is not None and not self._should_upgrade()
        )
        if not self._is_offered:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_offered:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        self._unset_keepalive_if_required()
        unread: bytes | memoryview = data
        while unread:
            try:
                self.parser.feed_data(unread)
                self.count(len(unread))
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self._is_offered:
                    self._leave_to_uvicorn()
                    return
                unread = memoryview(unread)[upgrade.args[0] :]
                self._read_again()
            except httptools.HttpParserError:
                message = "Invalid HTTP request received."
                self.logger.warning(message)
                if self.is_answering():
                    self.transport.abort()
                else:
                    self.send_400_response(message)
                return

    def _leave_to_uvicorn(self) -> None:
        if self._should_upgrade():
            self.handle_websocket_upgrade()
        else:
            self._unsupported_upgrade_warning()

    def _read_again(self) -> None:
        """The head, by a new parser: the old one reads no more."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [method + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in _without_offer(self.headers)]
        self._is_offered = False
        self.parser = self._new_parser()
        self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")

    def _new_parser(self) -> httptools.HttpRequestParser:
        """As uvicorn makes it: bytes after a request that closes its connection are no error."""
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser


def _too_large() -> bytes:
    message = f"The head of the request is longer than {MAX_HEAD_BYTES} bytes. Send shorter or fewer headers."
    body = error_body(431, message, "Bad Request")
    lines = [
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _without_offer(headers: Headers) -> Headers:
    kept = [(name, value) for name, value in headers if name not in (*OF_THE_OFFER, b"connection")]
    left = [option for option in _connection_options(headers) if option.lower() not in OF_THE_OFFER]
    return [*kept, (b"connection", b", ".join(left))] if left else kept


def _connection_options(headers: Headers) -> list[bytes]:
    return [option.strip() for name, value in headers if name == b"connection" for option in value.split(b",")]
