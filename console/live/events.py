"""Every event that a browser can get. One shape, one name, from the domain to the page.

A socket of a deployment gets one `Snapshot` and then `Frame`s of events, numbered without gaps; a gap or a reconnect
brings a snapshot again. Times `t` are Unix seconds, durations milliseconds.
"""

from typing import Literal, NotRequired, TypedDict


class Degradation(TypedDict):
    """Shown beside a server's state, never instead of it."""

    code: Literal[
        "pair_unverified",
        "pair_failed",
        "kv_not_transferred",
        "circuit_open",
        "no_answers",
        "silent_log",
        "unhealthy",
        "left_behind",
        "older_settings",
    ]
    text: str


class ServerCard(TypedDict):
    """All that a card in the yard shows."""

    id: int
    name: str
    deployment: str
    host: str
    """Empty for an adopted server: only its `url` is known."""
    adopted: bool
    """Someone else started it, so it has no start, stop or move."""
    gpus: list[int]
    role: str
    state: str
    state_text: str
    """The state in words, with what it waits for: "Loading: weights", "Draining: 3 streams left"."""
    state_since: float
    generation: int
    phase: str
    inflight: int
    """Requests of all routers on it now."""
    handoffs: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    """0 to 1; None when not known."""
    tokens_per_s: float | None
    engine_at: float | None
    """When its engine said what it runs, by its host's clock; `inflight` is of now."""
    degradations: list[Degradation]
    failure: dict[str, str]
    url: str
    can_move_to: list[str]
    """Roles that its state lets it move to; the preview may still refuse with a reason."""
    may_start: bool
    may_stop: bool


class MoveCard(TypedDict):
    id: int
    server: int
    server_name: str
    from_role: str
    to_role: str
    status: str
    requested_at: float
    finished_at: float | None
    out_of_service_s: float | None
    error: str
    requested_by: str


class ServerEvent(TypedDict):
    type: Literal["server"]
    server: ServerCard
    mode: str
    """Of its deployment now; as in `Snapshot`."""


class ServerRemovedEvent(TypedDict):
    type: Literal["server_removed"]
    id: int


class MoveEvent(TypedDict):
    type: Literal["move"]
    move: MoveCard


class FirstTokenEvent(TypedDict):
    """A dot on the TTFT chart, at the moment the first token went out."""

    type: Literal["ttft"]
    t: float
    request_id: str
    ttft_ms: float
    prompt_tokens: int
    """Estimated when the servers have not told yet."""
    route: str
    prefill: str
    decode: str


class GapsEvent(TypedDict):
    """Token gaps of one server in one batch. `points` holds the worst of them, `[t, gap_ms]`, at most 40."""

    type: Literal["gaps"]
    t: float
    server: str
    role: str
    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    stalled_ms: float
    """Sum over gaps above the deployment's gap limit (200 ms when none is set) of what exceeds it."""
    tokens: int
    points: list[tuple[float, float]]


class LongPromptEvent(TypedDict):
    """A prompt of at least `LONG_PROMPT_TOKENS` (a setting) was sent to a server: the one that computes it."""

    type: Literal["long_prompt"]
    t: float
    server: str
    prompt_tokens: int


class RequestRow(TypedDict):
    """A finished request as the list shows it."""

    request_id: str
    t: float
    model: str
    path: str
    streamed: bool
    route: str
    reason: str
    prefill: str
    decode: str
    prompt_tokens: int | None
    completion_tokens: int | None
    ttft_ms: float | None
    p50_gap_ms: float | None
    max_gap_ms: float | None
    e2e_ms: float | None
    status: int
    outcome: str
    error: str


class RequestEvent(TypedDict):
    type: Literal["request"]
    request: RequestRow


class LoadEvent(TypedDict):
    """Counts of one server that change too often for a whole card."""

    type: Literal["load"]
    id: int
    inflight: int
    handoffs: int
    running: NotRequired[int]
    waiting: NotRequired[int]
    kv_usage: NotRequired[float]
    tokens_per_s: NotRequired[float]
    engine_at: NotRequired[float]


Event = (
    ServerEvent
    | ServerRemovedEvent
    | MoveEvent
    | FirstTokenEvent
    | GapsEvent
    | LongPromptEvent
    | RequestEvent
    | LoadEvent
)


class Frame(TypedDict):
    type: Literal["events"]
    stream: str
    """Changes when the numbering starts anew (another process, a restart)."""
    seq: int
    dropped: int
    """Events left out for this slow viewer since its last frame; the page then asks for a snapshot."""
    events: list[Event]


class Snapshot(TypedDict):
    type: Literal["snapshot"]
    stream: str
    seq: int
    now: float
    deployment: str
    gap_limit_ms: float | None
    ttft_limit_ms: float | None
    mode: str
    """"split", "plain", "split and plain", "fallback", "refusing", "down": what requests meet."""
    servers: list[ServerCard]
    moves: list[MoveCard]
    ttft: list[FirstTokenEvent]
    gaps: list[GapsEvent]
    long_prompts: list[LongPromptEvent]
    requests: list[RequestRow]
