"""Which paths of an engine are reachable through the router, and how each is served. All others are refused.

Those steer a server (adapters, scaling, sleep, profiles), tell of its inside (`/metrics`, and `/kv_event_sources` with
addresses in the servers' own network), or are no requests of HTTP (`/v1/realtime`, a websocket of some speech models).
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

PathKind = Literal["split", "direct", "models", "response", "probe"]
"""`split`: prefill then decode. `direct`: one server does it. `response`: belongs to the server that made it. `probe`:
about no model, any server answers it."""

TOKENS: Final = "/inference/v1/generate"
"""Token ids in, token ids out."""
COHERE: Final = "/cohere/v2/chat"
"""Of engines started with VLLM_ENABLE_COHERE_API=1."""
SPLIT: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", TOKENS, COHERE)
DIRECT: Final = (
    "/v1/chat/completions/batch",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v2/embed",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/generative_scoring",
    "/invocations",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/v1/messages/render",
    "/v1/responses/render",
    f"{COHERE}/render",
)
WITHOUT_ENGINE: Final = frozenset(
    path for path in DIRECT if path.endswith(("/count_tokens", "/render", "/derender", "tokenize"))
)
"""What the server in front of an engine answers alone, so that it tells nothing of the engine."""
INVOCATIONS: Final = "/invocations"
"""Takes the body of any other API, and answers as that does."""
DESCRIPTION: Final = "/openapi.json"
"""Beside it engines have pages for people (`/docs`, `/redoc`). They load scripts from elsewhere, and at the address of
the console's pages such a script could do what the person may who opens them: they are refused."""
PROBES: Final = ("/ping", "/version", "/load", "/tokenizer_info", DESCRIPTION)
OPEN: Final = ("/ping",)
"""Health checks send no key."""
METHODS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys((*SPLIT, *DIRECT), ("POST",)),
    **dict.fromkeys((*PROBES, "/v1/models"), ("GET",)),
    "/ping": ("GET", "POST"),
}
RESPONSE: Final = re.compile(r"/v1/responses/([A-Za-z0-9_.-]{1,200})(/cancel)?")
"""One stored response. An id goes on to a server as it is, so it holds nothing that means anything in HTTP."""
ROOTS: Final = ("/v1/", "/v2/", "/inference/", "/cohere/")
"""Everything under these is the router's to answer, also with its own 404."""


def is_ours(path: str) -> bool:
    return path.startswith(ROOTS) or path.rstrip("/") in METHODS


def kind_of(path: str) -> PathKind | None:
    """None for a path that no client may reach. A trailing slash makes no difference."""
    path = path.rstrip("/")
    if path in SPLIT:
        return "split"
    if path in DIRECT:
        return "direct"
    if path in PROBES:
        return "probe"
    if path == "/v1/models" or path.startswith("/v1/models/"):
        return "models"
    if response_of(path) is not None:
        return "response"
    return None


def response_of(path: str) -> str | None:
    """The id of the stored response that the path is about."""
    found = RESPONSE.fullmatch(path.rstrip("/"))
    return found[1] if found and found[1] not in (".", "..") else None


def is_for_engine(path: str) -> bool:
    return path not in WITHOUT_ENGINE and response_of(path) is None


def methods_of(path: str) -> tuple[str, ...]:
    path = path.rstrip("/")
    if path.startswith("/v1/responses/") and path not in METHODS:
        return ("POST",) if path.endswith("/cancel") else ("GET",)
    return METHODS.get(path, ("GET",))


def api_of(path: str, body: Mapping[str, object]) -> str:
    """The path whose API a request speaks."""
    if path != INVOCATIONS:
        return path
    if "messages" in body:
        return "/v1/chat/completions"
    return "/v1/completions" if "prompt" in body or "prompt_embeds" in body else path
