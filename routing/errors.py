"""What can go wrong on the way of a request, and the OpenAI-shaped answer that says what to do about it.

`Refusal` is our own answer to the client. `LegError` is one leg that failed on one server; it says whether the server
is to blame (its circuit hears of it) and, when nothing else is left to try, which answer the client gets.
"""

import orjson

Headers = list[tuple[bytes, bytes]]
NAMES_PARAMETER = b"(parameter="
"""In an engine's words for a field's value that it does not take."""


class Refusal(Exception):
    """An answer of our own. `retry_after_s` becomes a Retry-After header; None says that trying again will not help.
    `allow`: the methods that the path takes, which a 405 has to name."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        retry_after_s: float | None = None,
        allow: str | None = None,
    ) -> None:
        # It may name what a client sent, and half a character cannot be written.
        message = message.encode("utf-8", "replace").decode()
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow

    def body(self, path: str) -> bytes:
        """OpenAI's shape, under the messages API with the key that its clients look for as well; Cohere's own."""
        if path.startswith("/cohere/"):
            return orjson.dumps({"message": self.message})
        body = error_body(self.status, self.message, self.kind, self.param)
        return b'{"type":"error",' + body[1:] if path.startswith("/v1/messages") else body


class NotInTable(Refusal):
    """A key or a model that the table does not know. A newer table may: it is looked for before this is answered."""


class UnknownName(NotInTable):
    """A model's name that no deployment has and no server listed. One may list it by now."""


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    error: dict[str, object] = {"message": message, "type": kind, "param": param, "code": status}
    return orjson.dumps({"error": error})


def error_event(status: int, message: str, kind: str, dialect: str) -> bytes:
    """How a stream that has begun ends when it breaks, in the words of the API that the client speaks."""
    error: dict[str, object]
    if dialect == "messages":
        error = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"
    if dialect == "responses":
        error = {"type": "error", "code": str(status), "message": message, "param": None}
        return b"event: error\ndata: " + orjson.dumps(error) + b"\n\n"
    if dialect == "cohere":
        error = {"type": "message-end", "delta": {"error": message, "finish_reason": "ERROR"}}
        return b"data: " + orjson.dumps(error) + b"\n\ndata: [DONE]\n\n"
    return b"data: " + error_body(status, message, kind) + b"\n\ndata: [DONE]\n\n"


class LegError(Exception):
    """One leg failed before its answer could be used."""

    blames_server = True
    status = 502
    kind = "UpstreamError"

    def refusal(self) -> Refusal:
        return Refusal(self.status, str(self), kind=self.kind, retry_after_s=1 if self.status == 503 else None)


class ConnectFailed(LegError):
    """Nothing was sent."""


class ConnectionLost(LegError):
    """The server closed or reset the connection before its answer was complete.

    Engines do so to a stream whose request they find at fault once its head is out: after that the loss may be the
    client's doing. A server that died in the middle says so to the next request by taking no connection."""

    def __init__(self, message: str, *, before_answer: bool) -> None:
        super().__init__(message)
        self.before_answer = before_answer
        self.blames_server = before_answer


class BadAnswer(LegError):
    """Not HTTP, or a stream that ended without having answered."""


class StreamError(LegError):
    """The engine said in its stream that it failed. `status` is what it named: 4xx is the client's to mend, for some of
    what it sends is looked at only when its stream has begun."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        self.is_clients = 400 <= status < 500
        self.blames_server = not self.is_clients
        self.headers: Headers = []
        self.held: bytes | None = None
        """The whole stream and its headers, when nothing of it went out."""

    def put_down_to_client(self, status: int) -> None:
        self.status, self.is_clients, self.blames_server = status, True, False


class TimedOut(LegError):
    """One of our own limits; the message names it."""

    status = 504
    kind = "TimeoutError"


class ServerBusy(LegError):
    """Our own limit of connections to this server is reached. Nothing was sent."""

    blames_server = False
    status = 503
    kind = "ServiceUnavailableError"


class KeyRefused(LegError):
    """The server did not take the key that the router holds for it: for the operator to mend, not for the client."""

    blames_server = False
    kind = "ServerKeyRefused"


class Answered(LegError):
    """The server answered with an error status. 4xx is the client's to mend and is passed on as it came, and so is 501:
    what an engine says to a picture in a form that it does not know. So is a 500 that names what is wrong with the
    request, which engines say under Cohere's API."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(f"answered {status}")
        self.status = status
        self.headers = headers
        self.body = body
        names_parameter = status == 500 and NAMES_PARAMETER in body
        self.is_clients = names_parameter or status == 501 or (400 <= status < 500 and status not in (408, 429))
        self.blames_server = status >= 500 and status not in (501, 503) and not names_parameter

    def refusal(self) -> Refusal:
        """Its words inside a stream that has begun, where the answer itself can no longer be passed on."""
        error = _error_of(self.body)
        return Refusal(self.status, str(error.get("message", self)), kind=str(error.get("type", self.kind)))


def raise_if(error: LegError | None) -> None:
    """Who raises what a name of its own refers to makes a cycle of the error and its frame. This makes none."""
    try:
        if error is not None:
            raise error
    finally:
        error = None


def _error_of(body: bytes) -> dict[str, object]:
    """Engines nest it; some give the message alone."""
    try:
        error = orjson.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": error}
