"""What a server that someone else started says of itself, before it is adopted. Blocking, bounded in time.

vLLM tells its version and its model to everybody. That it has a NIXL connector shows in its metrics. Its role it tells
only in development mode (/server_info); otherwise the operator says it and the canaries through its pairs prove it.
"""

import json
from typing import Any, TypedDict

from console.launch import metrics, readiness
from console.launch.outside import Place
from console.launch.probe import get

TIMEOUT_S = 2.0
"""For each of at most five questions."""
IF_NOT_VLLM = (
    "Give host and port on which vLLM itself listens (8000, unless it was started with --port), "
    "and not those of a proxy or another program."
)
IF_NO_METRICS = (
    "Start vLLM without --disable-log-stats, for that takes its figures out of /metrics, and give host and port on "
    "which it listens itself."
)
ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


class Told(TypedDict):
    version: str
    model: str
    """Path or repository name that it was started with; empty when its model card does not say."""
    max_model_len: int | None
    connector: str
    """"" without one, "nixl" when only its metrics tell of it, else its name."""
    role: str
    """"" when it does not say."""
    process_started_at: float | None
    kv_cache_tokens: int | None


class NotAdoptable(Exception):
    """The message is a sentence for the operator. `field`: the one that is wrong, when that is known."""

    def __init__(self, message: str, field: str = "url") -> None:
        super().__init__(message)
        self.message, self.field = message, field


def introduce(place: Place, served_model_name: str, api_key: str = "") -> Told:
    """Raises NotAdoptable: it cannot be reached, is not vLLM, wants a key, or serves something else."""
    version = _version(place)
    text = _text(place, "/metrics")
    if "vllm:" not in text:
        raise NotAdoptable(f"{place.url} answers, but /metrics is not that of a vLLM server. {IF_NO_METRICS}")
    card = _card(place, served_model_name, api_key)
    connector, role = _connector(place, text)
    return Told(
        version=version,
        model=str(card.get("root") or ""),
        max_model_len=card["max_model_len"] if isinstance(card.get("max_model_len"), int) else None,
        connector=connector,
        role=role,
        process_started_at=metrics.process_started_at(text),
        kv_cache_tokens=metrics.kv_cache_tokens(text),
    )


def _version(place: Place) -> str:
    try:
        status, body = get(place, "/version", TIMEOUT_S)
    except ConnectionRefusedError as error:
        raise NotAdoptable(f"Nothing listens at {place.url}. Start the server there, or look at the port.") from error
    except OSError as error:
        raise NotAdoptable(f"{place.url} does not answer ({error or type(error).__name__}).") from error
    said = _json(body)
    version = said.get("version") if status == 200 and isinstance(said, dict) else None
    if not isinstance(version, str):
        raise NotAdoptable(f"{place.url} answers, but /version is not that of a vLLM server. {IF_NOT_VLLM}")
    return version[:60]


def _card(place: Place, served_model_name: str, api_key: str) -> dict[str, Any]:
    status, body = _ask(place, "/v1/models", {"Authorization": f"Bearer {api_key}"} if api_key else {})
    if status in (401, 403):
        wrong = "refuses this API key" if api_key else "asks for an API key"
        raise NotAdoptable(f"{place.url} {wrong}. Give the one it was started with.", "api_key")
    said = _json(body)
    if problem := readiness.model_facts(said, served_model_name).problem:
        raise NotAdoptable(f"{place.url} does not fit this deployment: {problem}.")
    card: dict[str, Any] = next(card for card in said["data"] if card.get("id") == served_model_name)
    return card


def _connector(place: Place, text: str) -> tuple[str, str]:
    """Its name and the role, as far as it tells."""
    status, body = _ask(place, "/server_info?config_format=json", {})
    config = _json(body) if status == 200 else None
    for key in ("vllm_config", "kv_transfer_config"):
        config = config.get(key) if isinstance(config, dict) else None
    if isinstance(config, dict) and isinstance(config.get("kv_connector"), str):
        return config["kv_connector"], ROLES.get(str(config.get("kv_role")), "")
    return ("nixl", "") if metrics.has_nixl(text) else ("", "")


def _text(place: Place, path: str) -> str:
    status, body = _ask(place, path, {})
    return body.decode(errors="replace") if status == 200 else ""


def _ask(place: Place, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """(0, nothing) when it does not answer that in time."""
    try:
        return get(place, path, TIMEOUT_S, headers)
    except OSError:
        return 0, b""


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
