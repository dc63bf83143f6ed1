"""What vLLM finds wrong only when its API hands a request to the engine: a stream has begun then, and tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from .refusals import Refused
from .text import VOCABULARY_SIZE


def refusal(body: dict[str, Any], prompts: list[list[int]], logprobs: int | None, max_logprobs: int) -> Refused | None:
    """The first thing that is wrong."""
    return next(
        chain(
            _logprobs(logprobs, body.get("prompt_logprobs"), max_logprobs),
            _ids(body),
            _structured_outputs(body.get("structured_outputs")),
            _prompts(prompts),
        ),
        None,
    )


def _logprobs(logprobs: int | None, prompt_logprobs: int | None, max_logprobs: int) -> Iterator[Refused]:
    most = VOCABULARY_SIZE if max_logprobs == -1 else max_logprobs
    for name, of, asked in (("logprobs", "sample", logprobs), ("prompt_logprobs", "prompt", prompt_logprobs)):
        wanted = VOCABULARY_SIZE if asked == -1 else asked or 0
        if wanted > most:
            words = f"Requested {of} logprobs of {wanted}, which is greater than max allowed: {most}"
            yield Refused(words, param=name, value=wanted)


def _ids(body: dict[str, Any]) -> Iterator[Refused]:
    bias = body.get("logit_bias")
    odd = [token for token in map(int, bias) if not _is_known(token)] if isinstance(bias, dict) else []
    if odd:
        words = f"token_id(s) {odd} in logit_bias contain out-of-vocab token ids. Vocabulary size: {VOCABULARY_SIZE}"
        yield Refused(words, param="logit_bias", value=odd)
    allowed = body.get("allowed_token_ids")
    if allowed == []:
        yield Refused("allowed_token_ids is not None and empty!", param="allowed_token_ids", value=allowed)
    elif isinstance(allowed, list) and not all(map(_is_known, allowed)):
        words = "allowed_token_ids contains out-of-vocab token id!"
        yield Refused(words, param="allowed_token_ids", value=[token for token in allowed if not _is_known(token)])


def _structured_outputs(outputs: object) -> Iterator[Refused]:
    if isinstance(outputs, dict) and outputs.get("choice") == []:
        yield Refused("Choice '[]' cannot be an empty list")


def _prompts(prompts: list[list[int]]) -> Iterator[Refused]:
    for prompt in prompts:
        highest = max(prompt, default=0)
        if not _is_known(highest):
            yield Refused(f"Token id {highest} is out of vocabulary")


def _is_known(token: int) -> bool:
    return 0 <= token < VOCABULARY_SIZE
