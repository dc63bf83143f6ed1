"""What can be made to go wrong. Each field of `Faults` is a key of SIMULATOR_FAULTS and of POST /simulator/faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


class BadFaults(ValueError):
    """Faults that cannot be set; the message names the key."""


@dataclass(frozen=True)
class Faults:
    """Those without another note concern requests that generate (POST under /v1 and /invocations)."""

    # How many further requests the faults of requests apply to; None: all. When used up, those faults are cleared.
    times: int | None = None

    # --- when
    header_delay_s: float = 0.0
    first_chunk_delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    # The role chunk of a chat goes out at once, what follows it only so many seconds later.
    role_first_s: float = 0.0
    never_answer: bool = False
    # The connection stays open and silent after so many chunks.
    stall_after_chunks: int | None = None
    # Reads nothing of a request after its headers.
    stop_reading: bool = False

    # --- what
    # {"status": 500, "body": object or text, "headers": {…}}, instead of the real answer.
    answer: dict[str, Any] | None = None
    # 400 for a request whose body has one of these fields.
    refuse_fields: list[str] = field(default_factory=list)
    # "Authorization: Bearer <key>" is required on every path.
    api_key: str | None = None
    tokens_per_chunk: int = 1
    # Comment lines before each chunk.
    comment_lines: int = 0
    # So many tokens go out as `reasoning` (or as the named field) before the content.
    reasoning_tokens: int = 0
    reasoning_field: str = "reasoning"
    # A tool call whose arguments have so many bytes, whatever the request says.
    tool_call_bytes: int = 0
    # Keys added to each chunk or answer, and to each delta or message.
    extra: dict[str, Any] = field(default_factory=dict)
    delta_extra: dict[str, Any] = field(default_factory=dict)
    # Keys put over the usage that is reported, and prompt_tokens_details.cached_tokens.
    usage: dict[str, Any] = field(default_factory=dict)
    cached_tokens: int | None = None
    # "null": the prefill answers without parameters. "spent": it answers with parameters of blocks already given up.
    hand_off: str = "valid"
    # The stream ends in [DONE] without a finish_reason after so many chunks.
    done_after_chunks: int | None = None
    # The stream ends in an error event and [DONE] after so many chunks.
    error_after_chunks: int | None = None

    # --- how the bytes go
    # The connection is reset after so many chunks; 0: instead of the headers.
    reset_after_chunks: int | None = None
    # Writes are cut into pieces of so many bytes.
    split_writes: int = 0
    # "accepted": answers are compressed when the client accepts it. "always": whether it does or not.
    gzip: str = "never"
    # All paths: connections idle so long are closed; None: as VLLM_HTTP_TIMEOUT_KEEP_ALIVE says.
    close_idle_s: float | None = None

    # --- probes: {"status": 503, "delay_s": 6, "body": …, "never_answer": true} each
    health: dict[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    # --- the hand-off
    # A decode server drops what it was to fetch and computes the prompt itself, without a word.
    drop_kv: bool = False
    # Each load of KV fails.
    fail_kv_load: bool = False
    # A prefill server answers handshakes and reads with its refusal, as a stale peer would.
    refuse_peers: bool = False

    # --- the process
    ignore_sigterm: bool = False
    # SIGTERM while starting: "lost" (the server comes up and serves) or "hangs".
    sigterm_starting: str = "lost"
    # SIGTERM with requests in flight and no shutdown timeout: "hangs" or "ends" (streams end with [DONE]).
    sigterm_in_flight: str = "hangs"
    # {"exit_code": 1, "after_requests": 0}: dies at once or after so many further requests that generate.
    die: dict[str, Any] | None = None
    # So long after the exit a process of the group still holds the ports, as one that has not freed its GPU does.
    hold_s: float = 0.0
    # A start that fails: one of process.START_FAILURES.
    fail_start: str | None = None
    # No line and no progress after this phase of loglines.PHASES.
    silent_after_phase: str | None = None

    def merged(self, changes: Mapping[str, Any]) -> Faults:
        """Raises BadFaults. None sets a field back."""
        known = {item.name: item for item in fields(self)}
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise BadFaults(f"unknown fault {name!r}; known: {', '.join(known)}")
            values[name] = getattr(NONE, name) if value is None else _checked(name, value)
        return replace(self, **values)

    def without_request_faults(self) -> Faults:
        return Faults(**{name: getattr(self, name) for name in _LASTING})

    def as_json(self) -> dict[str, Any]:
        """Only what differs from no fault."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if getattr(self, item.name) != getattr(NONE, item.name)
        }


_LASTING = ("api_key", "close_idle_s", "health", "models", "metrics", "drop_kv", "fail_kv_load", "refuse_peers",
            "ignore_sigterm", "sigterm_starting", "sigterm_in_flight", "die", "hold_s")  # fmt: skip
_CHOICES = {
    "hand_off": ("valid", "null", "spent"),
    "gzip": ("never", "accepted", "always"),
    "sigterm_starting": ("lost", "hangs"),
    "sigterm_in_flight": ("hangs", "ends"),
}
_KINDS: dict[str, tuple[type, ...]] = {
    "float": (int, float),
    "float | None": (int, float),
    "int": (int,),
    "int | None": (int,),
    "bool": (bool,),
    "str": (str,),
    "str | None": (str,),
    "list[str]": (list,),
    "dict[str, Any]": (dict,),
    "dict[str, Any] | None": (dict,),
}


def _checked(name: str, value: object) -> object:
    kind = next(str(item.type) for item in fields(Faults) if item.name == name)
    allowed = _KINDS[kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise BadFaults(f"{name}: expected {kind}, got {value!r}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise BadFaults(f"{name}: expected one of {', '.join(_CHOICES[name])}, got {value!r}")
    return value


NONE = Faults()
