"""The API of token ids (/inference/v1/generate, with --enable-scale-out): its settings stand in one object."""

from __future__ import annotations

from typing import Any

from . import bodies, fields
from .bodies import Body, ServerFacts, Wanted
from .choice import Choice
from .refusals import Refused, invalid, missing
from .shapes import Shape, event, ids_of, prompt_logprobs

USUAL_MAX_TOKENS = 16


def read(body: Body, facts: ServerFacts) -> Wanted:
    """Raises Refused."""
    for name in ("token_ids", "sampling_params"):
        if name not in body:
            raise missing(name, body)
    body = fields.read(body, fields.TOKENS, fields.TOKENS_NEVER_NULL)
    ids, settings = body["token_ids"], body["sampling_params"]
    if not ids:
        raise invalid("token_ids", "List should have at least 1 item after validation, not 0", "too_short", ids)
    _check_limits(settings)
    if len(ids) > facts.max_model_len:
        raise Refused(
            f"The decoder prompt (length {len(ids)}) is longer than the maximum model length of {facts.max_model_len}."
        )
    # Asked for more than there is room for, the engine stops where its room ends.
    asked = settings.get("max_tokens")
    room = max(facts.max_model_len - len(ids), 1)
    as_completion: Body = {
        **settings,
        **{name: body.get(name) for name in ("model", "stream", "stream_options", "cache_salt", "return_token_ids")},
        "prompt": ids,
        "max_tokens": room if asked is None else min(asked, room),
        "kv_transfer_params": body.get("kv_transfer_params") or _smuggled(settings),
    }
    wanted = bodies.completion(as_completion, facts)
    wanted.gives_ids = True
    return wanted


def _check_limits(settings: Body) -> None:
    most, least = settings.get("max_tokens", USUAL_MAX_TOKENS), settings.get("min_tokens") or 0
    if most is not None and least > most:
        raise Refused(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")


def _smuggled(settings: Body) -> Any:
    """What stands here reaches the engine as it is."""
    extra = settings.get("extra_args")
    return extra.get("kv_transfer_params") if isinstance(extra, dict) else None


class TokensShape(Shape):
    swallows_errors = False

    def piece(self, choice: Choice, reasoning: str, text: str) -> bytes:
        chunk: dict[str, Any] = {"request_id": self.answer_id, "choices": [self._entry(choice)], "usage": None}
        if self.wanted.return_token_ids and not choice.open:
            chunk["prompt_token_ids"] = self.wanted.prompts[0]
        if self.wanted.continuous_usage:
            chunk["usage"] = self.usage([choice])
        return event(chunk | self.faults.extra)

    def closing(self, choices: list[Choice], failed: bool) -> bytes:
        told = b""
        if self.wanted.include_usage and not failed:
            told = event({"request_id": self.answer_id, "choices": [], "usage": self._counts(choices)})
        return told + super().closing(choices, failed)

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        wanted = self.wanted
        return {
            "request_id": self.answer_id,
            "model": wanted.model,
            "created": self.created,
            "choices": [self._entry(choice) for choice in choices],
            "usage": self.usage(choices),
            "prompt_logprobs": prompt_logprobs(wanted.prompts[0]) if wanted.local_prompt else None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": wanted.prompts[0] if wanted.return_token_ids else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": self.hand_off(choices),
            "ec_transfer_params": None,
        } | self.faults.extra

    def _entry(self, choice: Choice) -> dict[str, Any]:
        written = choice.take_pieces()
        return {
            "index": choice.index,
            "logprobs": self._logprobs(written),
            "finish_reason": choice.finish,
            "token_ids": ids_of(written),
            "routed_experts": None,
            "sampling_mask": None,
        }

    def _logprobs(self, written: list[str]) -> dict[str, Any] | None:
        if self.wanted.logprobs is None:
            return None
        return {"content": [{"token": f"token_id:{ids_of([piece])[0]}", "logprob": -0.5} for piece in written]}
