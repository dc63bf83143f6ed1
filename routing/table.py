"""What the router serves: an immutable table of deployments and their servers.

A table is swapped whole (`Router.swap`). A request keeps the one it began with, so a change never pulls a server from
under a running stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Role = Literal["plain", "prefill", "decode"]
WhenNoPair = Literal["fallback", "refuse"]


@dataclass(frozen=True, slots=True)
class Server:
    """One engine process. `id` survives restarts and moves; `generation` names one start of it."""

    id: str
    name: str
    role: Role
    url: str
    generation: int = 1
    api_key: str | None = None
    """Sent as the bearer key on every call to this server; a client's own key never is."""
    max_model_len: int | None = None
    """Prompt plus answer tokens that the engine takes; None when not known yet."""
    kv_lease_s: float = 30.0
    """How long a prefill server keeps blocks that nobody has fetched."""
    forces_usage: bool = False
    """Started with `--enable-force-include-usage`: each of its streams has a usage chunk, for everybody."""
    accepting: bool = True
    """False while it drains: nothing new is sent there, streams go on, a hand-off under way is still fetched."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; None is off. First byte and total are off by default: long prompts and long answers are normal."""

    connect_s: float = 3.0
    first_byte_s: float | None = None
    idle_s: float | None = 300.0
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """How a deployment's requests are spread. Every field can be changed while traffic flows."""

    short_prompt_tokens: int = 0
    """Prompts estimated below this many tokens skip the prefill server. 0 splits every request."""
    busy_decode_streams: int | None = None
    """Above this many streams on the chosen decode server a short prompt is split all the same. None: no gate."""
    plain_share_percent: float = 0.0
    """Share of requests sent to plain servers while split servers are there too, 0 to 100."""
    when_no_pair: WhenNoPair = "fallback"
    """No usable prefill server or pair: `fallback` lets a decode or plain server do it all, `refuse` answers 503."""
    prefix_affinity: bool = True
    session_affinity: bool = True
    retries: int = 2
    """Attempts after the first, before any byte went to the client."""
    wait_for_server_s: float = 0.0
    """How long a request may wait for a pool that is starting."""
    comment_every_s: float | None = None
    """An SSE comment line after this much silence before the first token; None sends none. A page of another site gets
    none either: a head would go out that no server has written, and its browser would not let it read on."""
    max_connections_per_server: int = 2048
    timeouts: Timeouts = field(default_factory=Timeouts)


LEAST: Mapping[str, float] = MappingProxyType(
    {
        "connect_s": 0.1,
        "first_byte_s": 0.1,
        "idle_s": 0.1,
        "total_s": 0.1,
        "comment_every_s": 1.0,
        "max_connections_per_server": 1.0,
    }
)
"""The settings of which 0 cannot be meant: comments without pause, or limits that no request keeps."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One served model name, with its servers and the pairs that a canary has verified."""

    name: str
    model: str
    """The name clients send as `model`."""
    servers: tuple[Server, ...] = ()
    pairs: frozenset[tuple[str, str]] | None = None
    """Verified (prefill id, decode id). None: every combination counts as verified (the router run alone)."""
    policy: Policy = field(default_factory=Policy)
    key_hashes: frozenset[str] | None = None
    """SHA-256 hex digests of the inference keys that may use it. None: no key is asked for."""
    starting: bool = False
    """Some server of it is on its way up, so waiting can help."""


@dataclass(frozen=True, slots=True)
class Table:
    """Everything routable at one moment. `epoch` grows with every published change."""

    epoch: int = 0
    deployments: Mapping[str, Deployment] = field(default_factory=lambda: MappingProxyType({}))
    """By the model name that clients send."""


EMPTY = Table()
