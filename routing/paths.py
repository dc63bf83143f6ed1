"""Which paths of an engine are reachable through the router, and how each is served. All others are refused."""

import re
from typing import Final, Literal

PathKind = Literal["split", "direct", "models", "response"]
"""`split`: prefill then decode. `direct`: one server does it. `response`: belongs to the server that made it."""

SPLIT: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
DIRECT: Final = (
    "/v1/chat/completions/batch",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
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
)
METHODS: Final[dict[str, str]] = dict.fromkeys((*SPLIT, *DIRECT), "POST") | {"/v1/models": "GET"}
RESPONSE: Final = re.compile(r"/v1/responses/([A-Za-z0-9_.-]{1,200})(/cancel)?")
"""One stored response. An id goes on to a server as it is, so it holds nothing that means anything in HTTP."""
ROOTS: Final = ("/v1/", "/v2/")
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
    if path == "/v1/models" or path.startswith("/v1/models/"):
        return "models"
    if response_of(path) is not None:
        return "response"
    return None


def response_of(path: str) -> str | None:
    """The id of the stored response that the path is about."""
    found = RESPONSE.fullmatch(path.rstrip("/"))
    return found[1] if found and found[1] not in (".", "..") else None


def method_of(path: str) -> str:
    path = path.rstrip("/")
    if path.startswith("/v1/responses/"):
        return "POST" if path.endswith("/cancel") else "GET"
    return METHODS.get(path, "GET")
