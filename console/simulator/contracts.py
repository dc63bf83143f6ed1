"""What the HTTP server and the engine say to each other, whether they share a process or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from .faults import Faults
from .handoff import Identity, Message
from .steps import StepCosts


@dataclass
class EngineRequest:
    """One choice to generate. It ends after `max_tokens` with `final_reason`."""

    request_id: str
    tokens: list[int]
    max_tokens: int
    final_reason: str = "length"
    salt: int = 0
    kv: dict[str, Any] | None = None
    n: int = 1
    # The whole prompt is computed here whatever is cached or comes from outside (prompt_logprobs).
    local_prompt: bool = False


class Output(NamedTuple):
    """One more token. `seed` is what the text follows from. `finish` is set on the last one; with "error" or "dead"
    there is no token. `hand_off` comes with the last one of a prefill."""

    tokens: int
    seed: int
    finish: str | None
    cached_tokens: int
    hand_off: dict[str, Any] | None


Sink = Callable[[Output], None]


class EngineLike(Protocol):
    """What the HTTP server needs of an engine, in its own process or in a child."""

    dead: bool

    def submit(self, request: EngineRequest, sink: Sink) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def stop(self, request_id: str) -> None: ...
    def release(self, params: Message) -> None: ...
    def set_faults(self, faults: Faults) -> None: ...
    def pause(self, paused: bool) -> None: ...
    def reset_prefix_cache(self) -> None: ...
    @property
    def unfinished(self) -> int: ...
    async def metrics_text(self) -> str: ...
    async def leases(self) -> int: ...


@dataclass(frozen=True)
class EngineConfig:
    """All that an engine needs to know; as JSON it goes to a child process."""

    model_name: str
    max_model_len: int
    identity: Identity
    connector: bool
    recompute: bool
    enforce_hash: bool
    lease_s: float
    side_host: str
    side_port: int
    blocks: int
    token_budget: int
    max_sequences: int
    prefix_caching: bool
    costs: StepCosts
    kv_bytes_per_token: int
    kv_gbps: float
    handshake_s: float
    handshake_timeout_s: float
    log_interval_s: float
