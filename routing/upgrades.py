"""A request that offers to go on in another protocol, as `curl --http2` does, is served in HTTP/1.1.

A server may ignore the offer. The parser cannot: it stops after the head, and uvicorn would then serve the request
without its body.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from routing.http1 import Headers

OF_THE_OFFER = (b"upgrade", b"http2-settings")


class IgnoresUpgrades(HttpToolsProtocol):
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
        self._unset_keepalive_if_required()
        unread: bytes | memoryview = data
        while unread:
            try:
                self.parser.feed_data(unread)
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
        return lenient_parser(self)


def lenient_parser(callbacks: object) -> httptools.HttpRequestParser:
    """As uvicorn makes it: bytes after a request that closes its connection are no error."""
    parser = httptools.HttpRequestParser(callbacks)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _without_offer(headers: Headers) -> Headers:
    kept = [(name, value) for name, value in headers if name not in (*OF_THE_OFFER, b"connection")]
    left = [option for option in _connection_options(headers) if option.lower() not in OF_THE_OFFER]
    return [*kept, (b"connection", b", ".join(left))] if left else kept


def _connection_options(headers: Headers) -> list[bytes]:
    return [option.strip() for name, value in headers if name == b"connection" for option in value.split(b",")]
