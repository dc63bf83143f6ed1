"""Settings of the simulator that are not vLLM's, read once from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

PREFIX = "SIMULATOR_"


class BadSetting(ValueError):
    """A variable holds a value that cannot be used; the message names it."""


@dataclass(frozen=True)
class Settings:
    """Each field is the variable SIMULATOR_<FIELD>. The step costs resemble an 8-billion-parameter model on one GPU."""

    # The step model: milliseconds, see `steps.StepCosts`.
    step_ms: float = 15.0
    prompt_token_ms: float = 0.1
    stream_ms: float = 0.1
    context_token_ms: float = 0.00015
    # Divides the lengths of steps and of transfers.
    speed: float = 1.0
    # Size of the KV cache. 262,144 tokens are what vLLM reports for 1 GiB of its smallest model.
    kv_tokens: int = 262_144
    # 32 layers, 8 KV heads of 128, 2 bytes, key and value.
    kv_bytes_per_token: int = 131_072
    kv_gbps: float = 100.0
    # The first transfer between two engines costs this much more (vLLM: 100 to 200 ms).
    handshake_ms: float = 100.0
    # How long a handshake waits for an engine that does not answer (NIXL connector: 5 s).
    handshake_timeout_s: float = 5.0
    start_s: float = 2.5
    # Teardown after SIGTERM (vLLM idle: 0.5 to 2.8 s).
    stop_s: float = 0.5
    # How long the HTTP server outlives its engine (vLLM: 1 to 5 s).
    watchdog_s: float = 1.0
    # An answer for which the client set no limit ends by itself after so many tokens; 0: never.
    answer_tokens: int = 256
    # The context length of the simulated model: the most that --max-model-len may ask for, and its default.
    model_max_len: int = 32_768
    # 2: the engine is a child process, as vLLM's EngineCore is.
    processes: int = 1
    # 1: the routes under /simulator exist.
    control: bool = False
    # JSON, see `faults.Faults`.
    faults: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        values: dict[str, object] = {}
        for item in fields(cls):
            name = PREFIX + item.name.upper()
            raw = environment.get(name, "").strip()
            if raw:
                values[item.name] = _converted(name, raw, str(item.type))
        return cls(**values)  # type: ignore[arg-type]  # each value was converted to its field's type


def _converted(name: str, raw: str, kind: str) -> object:
    if kind == "str":
        return raw
    if kind == "bool":
        return raw.lower() in ("1", "true", "yes", "on")
    try:
        value = int(raw) if kind == "int" else float(raw)
    except ValueError as error:
        raise BadSetting(f"{name}={raw!r}: expected a number") from error
    if value < 0 or (name == PREFIX + "SPEED" and value == 0):
        raise BadSetting(f"{name}={raw!r}: expected a positive number")
    return value
