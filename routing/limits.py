"""Whether a request is within the decode server's context, found out before a prefill server computes its prompt.

A prefill server is asked for one token only, so it takes prompts that leave the decode server no room for the answer,
and after that the decode server refuses. A request that may be too long is counted first, by the prefill server's
tokenizer; one that is too long is not computed anywhere, but refused in the engine's own words: the prefill server's
when both servers have the same limit, so that no stream of the decode server waits for a long text.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from routing.ask import Ask
from routing.backend import Backend
from routing.bodies import ANSWER_LIMITS, dump, prompt_ids
from routing.errors import Answered, Headers, LegError
from routing.large import read_object
from routing.leg import Leg
from routing.table import Timeouts

Fit = Literal["fits", "too long", "unknown"]
FEWEST_BYTES_PER_TOKEN: Final = 2.0
"""Texts with fewer bytes per token are rare enough to be left to the decode server."""
TOKENIZE_TIMEOUTS: Final = Timeouts(connect_s=1.0, first_byte_s=2.0)
REFUSAL_TIMEOUTS: Final = Timeouts(connect_s=1.0, first_byte_s=10.0)
OF_LENGTH: Final = (b"maximum context length", b"max_model_len - max_tokens", b"max_model_len - max_completion_tokens")
"""What a refusal says that counts the tokens which were asked for."""
COUNTED_FIELDS: Final = (
    "model",
    "prompt",
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_special_tokens",
)


def answer_tokens(body: Mapping[str, Any]) -> int:
    """What the client asks room for; 0 when it leaves the limit to the engine."""
    for name in ANSWER_LIMITS:
        value = body.get(name)
        if isinstance(value, int):
            return max(value, 0)
    return 0


def fit(body: Mapping[str, Any], prompt_bytes: int, prefill: Backend, decode: Backend) -> Fit:
    """Pure. `unknown`: only counting tells."""
    limit = decode.server.max_model_len
    if limit is None or body.get("truncate_prompt_tokens") is not None:
        return "fits"  # Or it is made to.
    answer = answer_tokens(body)
    ids = prompt_ids(body.get("prompt", body.get("token_ids")))
    if answer > limit:
        return "too long"
    if ids is not None:
        return "too long" if ids + answer > limit else "fits"
    prefill_limit = prefill.server.max_model_len
    if not answer and prefill_limit is not None and prefill_limit <= limit:
        return "fits"  # Or the prefill server refuses it.
    return "unknown" if prompt_bytes / FEWEST_BYTES_PER_TOKEN + answer > limit else "fits"


async def is_too_long(prefill: Backend, decode: Backend, body: Mapping[str, Any], headers: Headers) -> bool:
    """Counts by the prefill server's tokenizer, which is the same one, so that no stream of the decode server waits
    for a long text. When it cannot count, the engines have the last word on the request itself."""
    asked = dump({name: body[name] for name in COUNTED_FIELDS if name in body})
    try:
        with Leg(prefill, TOKENIZE_TIMEOUTS, is_aside=True) as leg:
            await leg.open("POST", "/tokenize", headers, asked)
            counted = (await read_object(await leg.read()))["count"]  # All the token ids come along.
    except (LegError, ValueError, KeyError, TypeError):
        return False
    limit = decode.server.max_model_len
    return limit is not None and isinstance(counted, int) and counted + answer_tokens(body) > limit


def have_one_limit(prefill: Backend, decode: Backend) -> bool:
    return prefill.server.max_model_len == decode.server.max_model_len


def tells_of_our_token(refusal: Answered) -> bool:
    """The leg that asks for one token is refused where the request would be, but in words about that one token."""
    return refusal.is_clients and any(words in refusal.body for words in OF_LENGTH)


async def refuse_in_own_words(prefill: Backend, ask: Ask, request_id: str) -> None:
    """Raises what the server says to the request as the client wrote it, which it is expected to refuse.

    Returns when it does not: it may have begun to do all of it, and stops as the connection is closed.
    """
    body = dump(ask.body) if ask.touched else ask.request.body
    headers = [*ask.headers, (b"x-request-id", request_id.encode())]
    try:
        with Leg(prefill, REFUSAL_TIMEOUTS, is_aside=True) as leg:
            await leg.open("POST", ask.request.path, headers, body)
    except LegError as error:
        if isinstance(error, Answered) and error.is_clients:
            raise
