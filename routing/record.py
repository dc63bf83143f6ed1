"""What one request leaves behind: its marks, counts, gaps, route and outcome.

Times are milliseconds on the router's monotonic clock, counted from the moment the request was read in full
(`received_at` is the same moment as Unix time). The parts of TTFT add up: choice, prefill, hand-off.
"""

from array import array
from dataclasses import dataclass, field
from typing import Literal, Protocol

RouteKind = Literal["split", "short prompt", "plain", "fallback", "direct"]
"""`direct`: a path or a request that is never split (embeddings, several prompts, …), served by one server."""
Outcome = Literal["ok", "failed", "cancelled", "refused"]
"""`failed`: we or a server broke it. `cancelled`: the client left. `refused`: a 4xx, the client's to mend."""


@dataclass(slots=True)
class Record:
    request_id: str
    deployment: str
    """Deployment name; empty when no deployment serves the model that was asked for."""
    path: str
    streamed: bool
    received_at: float
    route: RouteKind | None = None
    reason: str = ""
    """Why it went there, in words: "prefix on P2", "fallback: prefill 500"."""
    prefill_server: str | None = None
    decode_server: str | None = None
    """Ids of `routing.table.Server`. A request that was not split has only a decode server: the one that answered."""
    chosen_ms: float | None = None
    prefill_sent_ms: float | None = None
    prefill_answered_ms: float | None = None
    decode_sent_ms: float | None = None
    decode_opened_ms: float | None = None
    """The decode server's response head arrived."""
    first_token_ms: float | None = None
    """First non-empty content, reasoning or tool delta; None for a request that was not streamed."""
    last_token_ms: float | None = None
    finished_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """As the prefill server reported them; the decode server's own count says nothing about reuse."""
    completion_tokens: int | None = None
    estimated_prompt_tokens: int = 0
    gaps_ms: "array[float]" = field(default_factory=lambda: array("f"))
    """Between consecutive counting chunks, in order. A chunk may hold several tokens."""
    status: int = 0
    outcome: Outcome = "failed"
    error: str = ""
    attempts: int = 1
    orphaned_handoff: bool = False
    """The prefill server kept a cache that nobody fetched (the client left in between, or decode never took it)."""


class Observer(Protocol):
    """Told about requests as they happen. Called on the event loop: return at once, never raise."""

    def first_token(self, record: Record) -> None: ...

    def finished(self, record: Record) -> None: ...
