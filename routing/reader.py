"""Reads the requests of a connection: those that are the router's become a `DirectReply`, all others uvicorn's."""

from typing import TYPE_CHECKING

from routing.direct import DirectReply
from routing.http1 import Headers
from routing.paths import is_ours
from routing.reply import Request

if TYPE_CHECKING:
    from routing.uvicorn_protocol import RouterProtocol


class RequestReader:
    """What the parser calls. Whose a request is shows at the end of its head; uvicorn then hears of it from its
    beginning."""

    __slots__ = ("_headers", "_protocol", "_reply", "_url", "in_message")

    def __init__(self, protocol: "RouterProtocol") -> None:
        self._protocol = protocol
        self._url = b""
        self._headers: Headers = []
        self._reply: DirectReply | None = None
        """To the request that is being read; None when it is uvicorn's, as a pipelined one is."""
        self.in_message = False

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._reply = None
        self.in_message = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        url, headers, self._url, self._headers = self._url, self._headers, b"", []  # A stream need not hold them.
        protocol = self._protocol
        protocol.has_read = True
        if protocol.transport.is_closing():
            return  # The request before it was refused, and said that the connection ends.
        target, _, query = url.partition(b"?")
        path = target.decode("latin-1")
        length = _declared_length(headers)
        if length is None or "%" in path or not is_ours(path) or not protocol.may_answer_directly():
            self._leave_to_uvicorn(url, headers)
            return
        parser = protocol.parser
        request = Request(parser.get_method().decode("ascii"), path, query, headers, b"")
        reply = self._reply = DirectReply(protocol, request, keep_alive=parser.should_keep_alive())
        protocol.answer_directly(reply)
        if length > protocol.router.max_body_bytes:
            reply.refuse_body()

    def _leave_to_uvicorn(self, url: bytes, headers: Headers) -> None:
        protocol = self._protocol
        protocol.on_message_begin()
        protocol.on_url(url)
        for name, value in headers:
            protocol.on_header(name, value)
        protocol.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._protocol.has_read = True
        if self._reply is None:
            self._protocol.on_body(body)
        else:
            self._reply.add_body(body)

    def on_message_complete(self) -> None:
        self._protocol.has_read = True
        self.in_message = False
        if self._reply is None:
            self._protocol.on_message_complete()
        else:
            self._reply.end_of_body()
            self._reply = None


def _declared_length(headers: Headers) -> int | None:
    """Of the body, in bytes; 0 when the head does not tell, None when the client waits for `100 Continue`."""
    length = 0
    for name, value in headers:
        if name == b"content-length":
            length = int(value)
        elif name == b"expect" and value.lower() == b"100-continue":
            return None
    return length
