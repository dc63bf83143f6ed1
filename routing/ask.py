"""What a client asks for, read once from its request: model, key, and what the choice of servers needs."""

import hashlib
import re
from dataclasses import dataclass
from random import getrandbits
from typing import Any, Final

from routing import bodies
from routing.affinity import Memory, prefix_keys
from routing.choose import BYTES_PER_TOKEN, Wish
from routing.errors import Headers, NotInTable, Refusal, UnknownName
from routing.large import find, misread, read_large
from routing.names import Names
from routing.paths import INVOCATIONS, api_of, response_of
from routing.reply import Request
from routing.sse import DIALECTS
from routing.table import Deployment, Table

PASSED_ON: Final = frozenset(
    b"content-type accept origin user-agent traceparent tracestate baggage x-session-id x-vllm-priority"
    b" anthropic-version anthropic-beta endpoint-load-metrics-format x-amzn-sagemaker-adapter-identifier".split()
)
"""Client headers that an engine may see: all that it reads. Keys, routing headers and encodings never are passed on.
Nor is the rank in one server (`x-data-parallel-rank`), which would steer each of two."""
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
ADAPTER: Final = b"x-amzn-sagemaker-adapter-identifier"
"""Names an invocation's model; engines overlook the one in its body."""
WITHOUT_ID: Final = ("/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize")
SESSION_BYTES: Final = 16
MODEL_PART: Final = b'name="model"\r\n'
_MODEL_IN_FORM: Final = re.compile(MODEL_PART + rb"(?:[^\r\n]{1,1000}\r\n){0,20}\r\n([^\r\n]{0,1000})\r\n")
PROMPT_STARTS: Final = (b'"messages"', b'"prompt"', b'"input"', b'"token_ids"')


@dataclass(slots=True)
class Ask:
    """A request that may be served: its body is read, its key is right, its deployment is known."""

    request: Request
    body: dict[str, Any]
    touched: bool
    """The body is no longer what the client's bytes say."""
    deployment: Deployment
    listed: str | None
    """The name it asks for, where that is not the deployment's own: servers that list it may do it."""
    wish: Wish
    streamed: bool
    prompt_bytes: int
    headers: Headers
    """What servers may see of the client's; the request id is added per leg."""

    def forget_bodies(self) -> None:
        self.request.body = b""
        self.request.headers = []
        self.body = {}


def request_id(request: Request) -> str:
    given = request.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return getrandbits(128).to_bytes(16).hex()  # An id, not a secret.


def request_id_in(body: dict[str, Any], request: Request) -> str | None:
    """The one that the client gave in its body, where engines look for it and no header goes before it."""
    given = body.get("request_id")
    if not isinstance(given, str) or request.path in WITHOUT_ID or request.get(b"x-request-id") is not None:
        return None
    return given if _REQUEST_ID.fullmatch(given.encode("utf-8", "surrogatepass")) else None


def headers_for_servers(request: Request) -> Headers:
    """Answers are asked for unencoded, because they are read on their way."""
    return [(name, value) for name, value in request.headers if name in PASSED_ON]


def key_of(request: Request) -> str | None:
    value = request.get(b"authorization")
    if value is not None and value[:7].lower() == b"bearer ":
        return value[7:].strip().decode("latin-1")
    value = request.get(b"x-api-key")
    return None if value is None else value.decode("latin-1")


def hashed_key_of(request: Request) -> str | None:
    """As `Deployment.key_hashes` has it; None without a key."""
    key = key_of(request)
    return None if key is None else hashlib.sha256(key.encode("latin-1", "replace")).hexdigest()


def may_use(deployment: Deployment, hashed_key: str | None) -> bool:
    return deployment.key_hashes is None or hashed_key in deployment.key_hashes


async def read_body(request: Request) -> tuple[dict[str, Any], int]:
    """The JSON object, or for a form just the model that it names; and where in the bytes its prompt begins."""
    raw = request.body
    content_type = request.get(b"content-type") or b""
    if content_type.lower().startswith(b"multipart/form-data"):
        return await _read_form(raw), 0
    if not raw and request.path.startswith("/v1/responses/"):
        return {}, 0
    raw = request.body = bodies.in_utf8(raw)
    try:
        if len(raw) > bodies.LARGE_BYTES:
            large = await read_large(raw)
            return large.body, large.prompt_at
        return bodies.parse(raw), prompt_at(raw)
    except bodies.NotJson as unread:
        error = unread
    if len(raw) > bodies.LARGE_BYTES:
        error = await misread(raw, error)
    message = f"The body is not a JSON object: {error}. Send valid JSON."
    raise Refusal(400, message, kind="Bad Request", param=error.param) from error


async def _read_form(raw: bodies.Raw) -> dict[str, Any]:
    at = await find(raw, MODEL_PART)
    found = _MODEL_IN_FORM.match(raw, at) if at >= 0 else None
    return {"model": found[1].decode("utf-8", "replace")} if found else {}


def deployment_for(table: Table, names: Names, model: object, hashed_key: str | None) -> Deployment:
    """The one that is called so; else the first whose servers list it (`Names.find`). Raises `NotInTable`: 404 naming
    what is served, 401 for a wrong key, 503 when nothing is served at all. Raises `Refusal` for what is no model's
    name."""
    if not table.deployments:
        raise NotInTable(
            503,
            "No model is served yet. Start servers, or wait until those that start are ready.",
            kind="ServiceUnavailableError",
            retry_after_s=5,
        )
    if model is not None and not isinstance(model, str):
        raise Refusal(400, "The model is not a string. Send the name of one.", kind="Bad Request", param="body.model")
    deployment = _named(table, model)
    if deployment is not None and may_use(deployment, hashed_key):
        return deployment
    open_to_key = [other.model for other in table.deployments.values() if may_use(other, hashed_key)]
    if deployment is None and model:
        for other in names.find(table, model):
            if may_use(other, hashed_key):
                return other
    if deployment is not None or not open_to_key:
        raise NotInTable(
            401,
            "This model needs an inference key of its deployment. Send it as `Authorization: Bearer KEY`.",
            kind="AuthenticationError",
        )
    raise (UnknownName if model else NotInTable)(
        404,
        f"The model `{model}` is not served here. Served: {', '.join(sorted(open_to_key))}.",
        kind="NotFoundError",
        param="model",
    )


def _named(table: Table, model: str | None) -> Deployment | None:
    if model and model in table.deployments:
        return table.deployments[model]
    if not model and len(table.deployments) == 1:
        return next(iter(table.deployments.values()))
    return None


async def read_ask(request: Request, table: Table, names: Names, kind: str, responses: Memory) -> Ask:
    """`responses` knows which server made which stored response."""
    body, at = await read_body(request)
    touched = bodies.without_handoff(body)
    maker = _maker(request, body, kind, responses)
    model = body.get("model")
    if kind == "response" and model is None:
        model = _model_of(table, maker)
    if request.path == INVOCATIONS:
        model = _model_of_invocation(request, table, model)
    deployment = deployment_for(table, names, model, hashed_key_of(request))
    listed = model if model and model != deployment.model else None
    streamed = body.get("stream") is True
    whole = bodies.why_not_split(request.path, body) if kind == "split" else "served by one server"
    prompt = memoryview(request.body)[at:] if api_of(request.path, body) in DIALECTS else memoryview(b"")
    wish = _wish(request, body, deployment, listed, prompt, whole, maker)
    return Ask(request, body, touched, deployment, listed, wish, streamed, len(prompt), headers_for_servers(request))


def _model_of_invocation(request: Request, table: Table, model: object) -> object:
    """Where there are several deployments the body says whose servers are meant."""
    adapter = request.get(ADAPTER)
    if adapter:
        return adapter.decode("latin-1")
    return None if len(table.deployments) == 1 else model


def _maker(request: Request, body: dict[str, Any], kind: str, responses: Memory) -> str | None:
    """The server that made the response which this request is about."""
    if kind == "response":
        response_id = response_of(request.path) or ""
        server_id = responses.get(response_id)
        if server_id is None:
            words = f"Response with id '{response_id}' not found."  # As an engine says it.
            raise Refusal(404, words, kind="invalid_request_error", param="response_id")
        return server_id
    previous = body.get("previous_response_id")
    return responses.get(previous) if isinstance(previous, str) else None


def _model_of(table: Table, server_id: str | None) -> str | None:
    """What a server serves: who asks for a stored response need not name its model."""
    for deployment in table.deployments.values():
        if any(server.id == server_id for server in deployment.servers):
            return deployment.model
    return None


def _wish(
    request: Request,
    body: dict[str, Any],
    deployment: Deployment,
    listed: str | None,
    prompt: memoryview,
    whole: str | None,
    maker: str | None,
) -> Wish:
    policy = deployment.policy
    return Wish(
        prompt_tokens=_prompt_tokens(body, len(prompt)),
        whole=whole,
        only=maker,
        session=_session(request, body) if policy.session_affinity else None,
        prefix=prefix_keys(prompt, listed) if policy.prefix_affinity else (),
    )


def prompt_at(raw: bodies.Raw) -> int:
    """Where the prompt begins in a small body. Not exact, but the same for bodies that begin alike."""
    first = len(raw)
    for name in PROMPT_STARTS:
        at = raw.find(name, 0, first)
        if at >= 0:
            first = at
    return first if first < len(raw) else 0


def _prompt_tokens(body: dict[str, Any], prompt_length: int) -> int:
    ids = bodies.prompt_ids(body.get("prompt", body.get("token_ids")))
    return ids if ids is not None else int(prompt_length / BYTES_PER_TOKEN) + 1


def _session(request: Request, body: dict[str, Any]) -> str | None:
    """Of one length, whatever clients send: many are remembered."""
    header = request.get(b"x-session-id")
    if header:
        return hashlib.blake2b(header, digest_size=SESSION_BYTES).hexdigest()
    for name in ("session_id", "prompt_cache_key", "user"):
        value = body.get(name)
        if isinstance(value, str) and value:
            return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=SESSION_BYTES).hexdigest()
    return None
