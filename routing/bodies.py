"""The bodies of the two legs of a split request, made from the client's own. Pure.

The prefill server must render the very same prompt and must not be able to refuse or stop early because only one
token is asked for; the decode server gets what the client wrote, with the hand-off spliced in.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

Body = dict[str, Any]

ASK_FOR_HANDOFF = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
HANDOFF = "kv_transfer_params"
NEVER_FROM_CLIENTS = (HANDOFF, "ec_transfer_params")
ONLY_FOR_DECODE = (
    "stream_options",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "stop_sequences",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "best_of",
    "background",
    "store",
)
"""Refused next to one unstreamed token, or work whose result the prefill server would throw away."""
_IDS_BEGIN = re.compile(rb"\[\s*\d")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class NotJson(ValueError):
    """The body is not a JSON object."""


def parse(raw: bytes) -> Body:
    """The engine reads bodies with Python's own parser, which also takes NaN and lone surrogates; so do we, second."""
    try:
        body = orjson.loads(raw)
    except ValueError:
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise NotJson(str(error)) from error
    if not isinstance(body, dict):
        raise NotJson("the body must be a JSON object")
    return body


class Unread:
    """A large value as the bytes it came in."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


def dump(body: Body) -> bytes:
    try:
        return orjson.dumps(body, default=_as_it_came)
    except TypeError:
        plain = {name: json.loads(value.raw) if isinstance(value, Unread) else value for name, value in body.items()}
        return json.dumps(plain).encode()


def _as_it_came(value: object) -> orjson.Fragment:
    if isinstance(value, Unread):
        return orjson.Fragment(value.raw)
    raise TypeError


def without_handoff(body: Body) -> bool:
    """Strips a client's own hand-off: it can kill a decode engine or read other users' cache. True: there was one."""
    found = False
    for name in NEVER_FROM_CLIENTS:
        if name in body:
            del body[name]
            found = True
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and not extra.keys().isdisjoint(NEVER_FROM_CLIENTS):
        body["vllm_xargs"] = {name: value for name, value in extra.items() if name not in NEVER_FROM_CLIENTS}
        found = True
    return found


def why_not_split(path: str, body: Body) -> str | None:
    """Why this request must be done by one server from start to end; None when it can be split."""
    if _number(body.get("n"), 1) != 1 or _number(body.get("best_of"), 1) != 1:
        return "several choices"
    if body.get("use_beam_search"):
        return "beam search"
    if body.get("prompt_logprobs") is not None or (body.get("echo") and body.get("logprobs") is not None):
        return "prompt logprobs"
    if path == "/v1/completions" and not _is_one_prompt(body.get("prompt")):
        return "several prompts"
    if path == "/v1/responses" and (body.get("previous_response_id") or body.get("background")):
        return "stored response"
    return None


def _number(value: object, default: int) -> object:
    return default if value is None else value


def _is_one_prompt(prompt: object) -> bool:
    if isinstance(prompt, Unread):
        return prompt.raw.startswith(b'"') or prompt_ids(prompt) is not None
    if not isinstance(prompt, list):
        return isinstance(prompt, str)
    return len(prompt) == 1 or prompt_ids(prompt) is not None


def prompt_ids(prompt: object) -> int | None:
    """How many token ids the prompt is; None when it is not one prompt of ids."""
    if isinstance(prompt, Unread):
        return prompt.raw.count(b",") + 1 if _IDS_BEGIN.match(prompt.raw) else None
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    return None


def prefill_body(path: str, body: Body) -> bytes:
    """The client's body asking for one token, unstreamed, that is kept for a decode server."""
    return _one_token(path, body, ASK_FOR_HANDOFF)


def _one_token(path: str, body: Body, handoff: Mapping[str, Any]) -> bytes:
    copy = {name: value for name, value in body.items() if name not in ONLY_FOR_DECODE}
    for name in LIMITS:
        if name in copy:
            copy[name] = 1
    copy["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 1
    copy["stream"] = False
    if "n" in copy:
        copy["n"] = 1
    _never_parse_the_answer(path, copy)
    copy[HANDOFF] = handoff
    return dump(copy)


def _never_parse_the_answer(path: str, body: Body) -> None:
    """A forced tool call cut after one token is not JSON, and the server would refuse its own answer.

    `none` renders the same tools into the prompt and parses nothing.
    """
    choice = body.get("tool_choice")
    if choice is None or choice == "none" or not body.get("tools"):
        return
    body["tool_choice"] = {"type": "none"} if path == "/v1/messages" else "none"


class DecodeBody:
    """The body for the server that answers: the client's bytes, with what we need spliced in at the end.

    `asks_usage` says whether the client wanted the usage chunk of a stream; when not, we ask for it to count tokens
    and take it out again.
    """

    def __init__(self, raw: bytes, body: Body, *, touched: bool, counts_by_usage: bool) -> None:
        self._raw = raw
        self._body = body
        self._touched = touched
        options = body.get("stream_options")
        self.asks_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        wants_usage = counts_by_usage and body.get("stream") is True and not self.asks_usage
        if wants_usage and (options is None or isinstance(options, dict)):
            self._ask_usage(dict(options or {}))

    def _ask_usage(self, options: dict[str, Any]) -> None:
        if options.get("continuous_usage_stats"):
            options["continuous_usage_stats"] = False
        self._put("stream_options", {**options, "include_usage": True})

    def _put(self, name: str, value: object) -> None:
        spliced = None if self._touched or name in self._body else splice(self._raw, name, value)
        self._body = {**self._body, name: value}
        if spliced is None:
            self._touched = True
        else:
            self._raw = spliced

    def with_handoff(self, handoff: Mapping[str, Any] | None) -> bytes:
        """`handoff` None: the server computes the prompt itself."""
        if handoff is None:
            return dump(self._body) if self._touched else self._raw
        if self._touched:
            return dump({**self._body, HANDOFF: handoff})
        return splice(self._raw, HANDOFF, handoff) or dump({**self._body, HANDOFF: handoff})

    def forget(self) -> None:
        self._raw, self._body = b"", {}

    def to_release(self, path: str, handoff: Mapping[str, Any]) -> bytes:
        """Makes the decode server fetch the cache and stop: frees a hand-off whose client has left."""
        return _one_token(path, self._body, handoff)


def splice(raw: bytes, name: str, value: object) -> bytes | None:
    """Adds a key at the end of a JSON object without touching its bytes; None when the object is empty."""
    body = raw.rstrip()
    inner = body[1:-1].strip() if len(body) < 64 else b"x"
    if not inner or not body.endswith(b"}"):
        return None
    return b'%b,"%b":%b}' % (body[:-1], name.encode(), orjson.dumps(value))
