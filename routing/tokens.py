"""The API of token ids (`paths.TOKENS`), whose settings stand one level deeper than those of the other APIs. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from routing.paths import TOKENS

SETTINGS: Final = "sampling_params"
EXTRA: Final = "extra_args"
"""In the settings: whatever a client puts there reaches the engine as it is."""
AT_THE_TOP: Final = ("token_ids", SETTINGS, "stream", "stream_options")
USUAL_MAX_TOKENS: Final = 16
"""Of which its settings are said to be, as long as they are checked, where they name no limit."""
OF_THE_PROMPT: Final = ("prompt_logprobs", "prompt_logprob_token_ids")
ONLY_FOR_DECODE: Final = ("min_tokens", "stop", "stop_token_ids", "stream_interval", *OF_THE_PROMPT)


def flat(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body with its settings where those of the other APIs stand."""
    if path != TOKENS:
        return body
    settings = body.get(SETTINGS)
    top = {name: body[name] for name in AT_THE_TOP if name in body}
    return {"max_tokens": USUAL_MAX_TOKENS, **(settings if isinstance(settings, dict) else {}), **top}


def why_not_split(body: Mapping[str, Any]) -> str | None:
    """What can be in the way of it beside what can be in all APIs."""
    if not isinstance(body.get(SETTINGS), dict):
        return "no prompt"
    if any(body[SETTINGS].get(name) is not None for name in OF_THE_PROMPT):
        return "prompt logprobs"
    if body.get("features"):
        return "rendered features"  # Some servers know them by a name that others do not.
    return None


def without_handoff(body: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Strips those names from where the engine looks for them. True: there was one."""
    settings = body.get(SETTINGS)
    extra = settings.get(EXTRA) if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or not isinstance(extra, dict) or extra.keys().isdisjoint(names):
        return False
    kept = {name: value for name, value in extra.items() if name not in names}
    body[SETTINGS] = {**settings, EXTRA: kept}
    return True


def for_one_token(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ONLY_FOR_DECODE} | {"max_tokens": 1}
