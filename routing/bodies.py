"""The bodies of the two legs of a split request, made from the client's own. Pure.

The prefill server must render the very same prompt and must not be able to refuse or stop early because only one
token is asked for; the decode server gets what the client wrote, with the hand-off spliced in.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeGuard

import orjson

from routing import tokens
from routing.paths import COHERE, TOKENS

Body = dict[str, Any]
Raw = bytes | bytearray
"""A body as it came; a large one has grown in place (`gather`)."""
Sendable = Raw | list[Raw | memoryview]
"""A body to send: a large one in the pieces it consists of, because each copy of 60 MB holds streams up for 20 ms."""
LARGE_BYTES: Final = 256 * 1024
MOST_CONVERTED_BYTES: Final = 8 * 2**20
"""To write a longer body anew would hold streams up."""
USUAL_MAX_LOGPROBS: Final = 20
"""What a server allows unless told otherwise (`--max-logprobs`)."""
MOST_DIGITS: Final = 18
MOST_COUNTED_ANSWERS: Final = 10_000


def gather(parts: list[Raw], data: bytes, size: int) -> None:
    """Adds to a body that comes in parts, `size` bytes of it now. A large one becomes one part that grows: to join 60
    MB at the end holds streams up for 40 ms."""
    if size <= LARGE_BYTES:
        parts.append(data)
    elif parts and isinstance(parts[0], bytearray):
        parts[0] += data
    else:
        parts[:] = [bytearray(b"".join([*parts, data]))]


ASK_FOR_HANDOFF: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
HANDOFF: Final = "kv_transfer_params"
NEVER_FROM_CLIENTS: Final = (HANDOFF, "ec_transfer_params")
ONLY_FOR_DECODE: Final = (
    "stream_options",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "stop_sequences",
    "prompt_logprobs",
    "echo",
    "best_of",
    "background",
    "store",
)
"""Refused next to one unstreamed token, or work whose result the prefill server would throw away. The log probabilities
of that token cost nothing, and a prefill server that is asked for them refuses what is wrong with them."""
_LONG_NUMBER: Final = b"0" * 19
"""Of so many digits is the shortest whole number that has no 64 bits: as a fraction it is another one in a prompt."""
_DIGITS_ALIKE: Final = bytes(ord("0") if chr(byte).isdecimal() else byte for byte in range(256))
_IDS_BEGIN: Final = re.compile(rb"\[\s*\d")
ENGINES_TOOLS: Final = ("web_search_preview", "code_interpreter", "container", "mcp")
"""Types of tools that an engine may run itself (`--tool-server`)."""
_ENGINES_TOOL: Final = re.compile(rb'"(?:web_search_preview|code_interpreter|container|mcp)"')
ANSWER_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""The first that is given counts."""

REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "/v1/chat/completions": ("messages",),
    "/v1/responses": ("input",),
    "/v1/messages": ("messages", "max_tokens"),
    TOKENS: ("token_ids",),
    COHERE: ("model", "messages"),
}
"""A request without these is refused by whichever server, in words that count its fields."""


NotFinite: Final[Callable[[object], object]] = type("NotFinite", (float,), {})
"""Infinity and its like, which the faster writer takes for null where they are plain floats, and refuses as these."""


class NotJson(ValueError):
    """The body is not a JSON object. `param`: the place in it that an engine would name."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message)
        self.param = "body" if at is None else f"body.{at}"


def parse(raw: Raw) -> Body:
    """The engine reads bodies with Python's own parser, which also takes NaN, lone surrogates and whole numbers of any
    size; so do we, where the faster one would not or would take a number for another."""
    body: object = None
    if _LONG_NUMBER not in raw.translate(_DIGITS_ALIKE):  # A tenth of the time of a pattern.
        try:
            body = orjson.loads(raw)
        except ValueError:
            body = None
    if body is None:
        try:
            body = json.loads(raw, parse_float=_fraction, parse_constant=NotFinite)
        except (ValueError, RecursionError) as error:
            raise NotJson(str(error), getattr(error, "pos", None) if raw else None) from error
    if not isinstance(body, dict):
        raise NotJson("the body must be a JSON object")
    return body


def _fraction(numeral: str) -> object:
    """An object, because machine code takes what is said to be a float for a plain one."""
    value = float(numeral)
    if math.isfinite(value):
        return value
    return NotFinite(value)


def in_utf8(raw: Raw) -> Raw:
    """Engines also read UTF-16, UTF-32 and a mark of the order of bytes, beside which nothing can be spliced in."""
    if raw[:1] == b"{" and raw[1:2] != b"\0":
        return raw
    encoding = json.detect_encoding(raw)
    if encoding == "utf-8" or len(raw) > MOST_CONVERTED_BYTES:
        return raw
    try:
        return raw.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw


class Unread:
    """A large value as the bytes it came in. `commas`: outside strings, so one less than the items of a flat list."""

    __slots__ = ("commas", "raw")

    def __init__(self, raw: memoryview, commas: int) -> None:
        self.raw = raw
        self.commas = commas


def dump(body: Body) -> Sendable:
    if any(isinstance(value, Unread) for value in body.values()):
        return list(pieces(body))
    return _dump_small(body)


def _dump_small(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def pieces(body: Body) -> Iterator[Raw | memoryview]:
    mark = b"{"
    for name, value in body.items():
        yield b"%b%b:" % (mark, _dump_small(name))
        yield value.raw if isinstance(value, Unread) else _dump_small(value)
        mark = b","
    yield b"}"


def length(body: Sendable) -> int:
    return sum(map(len, body)) if isinstance(body, list) else len(body)


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
    return tokens.without_handoff(body, NEVER_FROM_CLIENTS) or found


def answers_of(path: str, body: Body) -> int:
    """How many share a stream, their tokens by turns; 0 where only the engine can tell."""
    n, prompts = _number(tokens.flat(path, body).get("n"), 1), 1
    if _has_several_prompts(path, body):
        prompt = body.get("prompt")
        prompts = len(prompt) if _are_prompts(prompt) and body.get("prompt_embeds") is None else 0
    answers = n * prompts if isinstance(n, int) else 0
    return answers if 0 < answers <= MOST_COUNTED_ANSWERS else 0


def why_not_split(path: str, body: Mapping[str, Any]) -> str | None:
    """Why this request must be done by one server from start to end; None when it can be split."""
    if path == TOKENS and (why := tokens.why_not_split(body)):
        return why
    body = tokens.flat(path, body)
    if _number(body.get("n"), 1) != 1 or _number(body.get("best_of"), 1) != 1:
        return "several choices"
    if body.get("use_beam_search"):
        return "beam search"
    if body.get("prompt_logprobs") is not None or _echoes_logprobs(path, body):
        return "prompt logprobs"
    if _is_cut_to_its_room(path, body):
        return "truncation"
    if any(name not in body for name in REQUIRED.get(path, ())):
        return "no prompt"
    if _are_lengths_refused(path, body) or _asks_for_many_logprobs(body):
        return "out of range"
    if _is_refused_for_its_types(body):
        return "fields of a wrong type"
    if _has_several_prompts(path, body):
        return "several prompts"
    if path == "/v1/responses" and (body.get("previous_response_id") or body.get("background")):
        return "stored response"
    if path == "/v1/responses" and _asks_for_engines_tools(body.get("tools")):
        return "tools of the engine's own"
    return None


def _asks_for_engines_tools(tools: object) -> bool:
    """An engine that has them goes on by itself after such a call, with a longer prompt and the hand-off that it has
    used already: it would read blocks that are another's by now, or end."""
    if isinstance(tools, Unread):
        return len(tools.raw) > LARGE_BYTES or _ENGINES_TOOL.search(tools.raw) is not None
    return isinstance(tools, list) and any(
        isinstance(tool, dict) and tool.get("type") in ENGINES_TOOLS for tool in tools
    )


def _is_cut_to_its_room(path: str, body: Mapping[str, Any]) -> bool:
    """Its prompt may be cut to what the answer's limit leaves: asked for one token it would be another prompt."""
    if path == "/v1/responses":
        return body.get("truncation") not in (None, "disabled")
    tokens = body.get("truncate_prompt_tokens")
    return tokens is not None and not (isinstance(tokens, int) and tokens >= 0)


def _are_lengths_refused(path: str, body: Mapping[str, Any]) -> bool:
    """A prefill server, which is asked for one token, would not see it, and keep the prompt's cache for nobody."""
    most: int | None = None
    for name in ANSWER_LIMITS:
        if body.get(name) is not None:
            limit = _whole_number(body[name])
            if limit is None or limit < 1:
                return True
            most = limit if most is None else most
    if body.get("min_tokens") is not None:
        fewest = _whole_number(body["min_tokens"])
        if fewest is None or fewest < 0 or (most is not None and fewest > most):
            return True
    if path == "/v1/messages" and _thinks_for_longer(body.get("thinking"), most):
        return True
    return bool(body.get("stream_options")) and not body.get("stream")


def _asks_for_many_logprobs(body: Mapping[str, Any]) -> bool:
    """A stream is refused for it inside the stream, which only the server that answers can do."""
    for name in ("logprobs", "top_logprobs"):
        asked = body.get(name)
        if asked is not None and not (isinstance(asked, int) and 0 <= asked <= USUAL_MAX_LOGPROBS):
            return True
    return False


def _whole_number(value: object) -> int | None:
    """As engines read it, also from text; None for what they may not take for one."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS:
        return int(value)
    return value if isinstance(value, int) else None


def _thinks_for_longer(thinking: object, most: int | None) -> bool:
    tokens = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return tokens is not None and not (isinstance(tokens, int) and most is not None and tokens < most)


def _is_refused_for_its_types(body: Mapping[str, Any]) -> bool:
    """Likewise: a decode server that cannot read a field does not get to know of the hand-off, and frees nothing."""
    words = all(_is_words(body.get(name)) for name in ("stop", "stop_sequences"))
    return not (words and _are_ids(body.get("stop_token_ids")) and _are_switches(body.get("stream_options")))


def _is_words(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(word, str) for word in value)
    return value is None or isinstance(value, str)


def _are_ids(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(number, int) for number in value))


def _are_switches(options: object) -> bool:
    if not isinstance(options, dict):
        return options is None
    return all(options.get(name) in (None, False, True) for name in ("include_usage", "continuous_usage_stats"))


def _has_several_prompts(path: str, body: Mapping[str, Any]) -> bool:
    """Text beside embeddings is a prompt more."""
    if path != "/v1/completions":
        return False
    return body.get("prompt_embeds") is not None or not _is_one_prompt(body.get("prompt"))


def _are_prompts(prompt: object) -> TypeGuard[list[Any]]:
    """Numbers that are no whole ones, and text among them, the engine may take for the ids of a single one."""
    if not isinstance(prompt, list):
        return False
    return all(isinstance(one, str) for one in prompt) or all(isinstance(one, list) for one in prompt)


def _echoes_logprobs(path: str, body: Mapping[str, Any]) -> bool:
    """For a chat's echo the engine always computes them, asked for or not."""
    return bool(body.get("echo")) and (path == "/v1/chat/completions" or body.get("logprobs") is not None)


def _number(value: object, default: int) -> object:
    return default if value is None else value


def _is_one_prompt(prompt: object) -> bool:
    if isinstance(prompt, Unread):
        return prompt.raw[0] == ord('"') or prompt_ids(prompt) is not None
    if not isinstance(prompt, list):
        return isinstance(prompt, str)
    return len(prompt) == 1 or prompt_ids(prompt) is not None


def prompt_ids(prompt: object) -> int | None:
    """How many token ids the prompt is; None when it is not one prompt of ids."""
    if isinstance(prompt, Unread):
        return prompt.commas + 1 if _IDS_BEGIN.match(prompt.raw) else None
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    return None


def prefill_body(path: str, body: Body) -> Sendable:
    """The client's body asking for one token, unstreamed, that is kept for a decode server."""
    return _one_token(path, body, ASK_FOR_HANDOFF)


def _one_token(path: str, body: Body, handoff: Mapping[str, Any]) -> Sendable:
    copy = {name: value for name, value in body.items() if name not in ONLY_FOR_DECODE}
    if path == TOKENS:
        copy[tokens.SETTINGS] = tokens.for_one_token(body[tokens.SETTINGS])
    else:
        _ask_for_one_token(path, copy)
    copy["stream"] = False
    copy[HANDOFF] = handoff
    return dump(copy)


def _ask_for_one_token(path: str, body: Body) -> None:
    for name in ANSWER_LIMITS:
        if name in body:
            body[name] = 1
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 1
    if "n" in body:
        body["n"] = 1


def forces_a_tool(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        choice = choice.get("type")
    return choice not in (None, "none", "auto") and bool(body.get("tools"))


class DecodeBody:
    """The body for the server that answers: the client's bytes, with what we need spliced in at the end.

    A stream's usage chunk that the client did not ask for is `ours`: we ask for it to count tokens, and take it out
    again.
    """

    def __init__(self, raw: Raw, body: Body, *, touched: bool, counts_by_usage: bool) -> None:
        self._raw = raw
        self._body = body
        self._touched = touched
        asks = counts_by_usage and body.get("stream") is True and _leaves_usage_to_us(body.get("stream_options"))
        self._usage: Body = _asking_usage(dict(body.get("stream_options") or {})) if asks else {}

    def usage_is_ours(self, *, forced: bool) -> bool:
        """`forced`: the server sends usage to everybody, so it is the client's."""
        return bool(self._usage) and not forced

    def sendable(self, handoff: Mapping[str, Any] | None, *, usage_forced: bool) -> Sendable:
        """`handoff` None: the server computes the prompt itself."""
        added = dict(self._usage) if self.usage_is_ours(forced=usage_forced) else {}
        if handoff is not None:
            added[HANDOFF] = handoff
        if not added and not self._touched:
            return self._raw
        if self._touched or not self._body or not self._body.keys().isdisjoint(added):
            return dump({**self._body, **added})
        return splice(self._raw, added)

    def forget(self) -> None:
        self._raw, self._body = b"", {}

    def to_release(self, path: str, handoff: Mapping[str, Any]) -> Sendable:
        """Makes the decode server fetch the cache and stop: frees a hand-off whose client has left."""
        return _one_token(path, self._body, handoff)


def _leaves_usage_to_us(options: object) -> bool:
    """Not where it is asked for already, nor where a word that is no yes or no has to be seen by the engine, which
    refuses it."""
    return _are_switches(options) and not (isinstance(options, dict) and options.get("include_usage"))


def _asking_usage(options: Body) -> Body:
    if options.get("continuous_usage_stats"):
        options["continuous_usage_stats"] = False
    return {"stream_options": {**options, "include_usage": True}}


def splice(raw: Raw, added: Mapping[str, Any]) -> Sendable:
    """Adds keys at the end of a JSON object that has some, without touching its bytes."""
    end = raw.rindex(b"}")
    more = b",%b" % orjson.dumps(added)[1:]
    return [memoryview(raw)[:end], more] if len(raw) > LARGE_BYTES else raw[:end] + more
