"""Two answers to one request, field by field: what differs between them, in words.

A stream is told in a form that does not depend on how it was cut: a server that lags puts two tokens into one event, so
texts and lists of tokens are joined, and of every other field the values that it took, one after the other.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]
Path = tuple[str, ...]

OF_THE_MOMENT = frozenset(
    [
        "id",
        "created",
        "created_at",
        "completed_at",
        "item_id",
        "call_id",
        "request_id",
        "sequence_number",
        "kv_transfer_params",
    ]
)
"""Names, times, places in the stream and hand-offs, which no two answers share."""
TEXTS = frozenset(
    ["content", "text", "delta", "arguments", "partial_json", "reasoning", "reasoning_content", "thinking"]
)
"""Fields of an event that carry the next piece of something."""
LISTS = frozenset(["content", "tokens", "token_logprobs", "top_logprobs", "text_offset", "token_ids", "logprobs"])
OF_THE_SERVER = frozenset(["system_fingerprint"])
"""Fields whose value names how a server was started; only whether they are there is compared."""
TIME = re.compile(r"\[\d\d:\d\d:\d\d\]")
"""In the middle of some refusals."""
TOLERANCE = 2e-3
"""Of log probabilities: the servers add the same numbers up in another order."""


@dataclass
class Told:
    """A stream in a form that is the same however it was cut."""

    order: list[str] = field(default_factory=list)
    """The kinds of events, each run of one kind once."""
    fields: dict[Path, Any] = field(default_factory=dict)
    seen: set[Path] = field(default_factory=set)


def differences(one: httpx.Response, other: httpx.Response, *, own_words: bool = False) -> list[str]:
    """Empty when the answers are the same. `own_words`: the second is a refusal in other words, of the same kind."""
    kinds = [answer.headers.get("content-type") for answer in (one, other)]
    found = list(_compare((one.status_code, kinds[0]), (other.status_code, kinds[1]), ("status and type",)))
    left_out = OF_THE_MOMENT | {"message"} if own_words else OF_THE_MOMENT
    if own_words and "error" not in one.json():
        return found  # What the engine's web framework says by itself has a shape of its own.
    return [*found, *_compare(told(one, left_out), told(other, left_out), ())]


def told(answer: httpx.Response, left_out: frozenset[str]) -> Any:
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        stream = told_stream(answer.text, left_out)
        return {"order": stream.order, "fields": stream.fields, "seen": sorted(stream.seen)}
    try:
        return without(answer.json(), left_out)
    except ValueError:
        return answer.text


def without(value: Any, left_out: frozenset[str]) -> Any:
    if isinstance(value, dict):
        kept = {name: without(part, left_out) for name, part in value.items() if name not in left_out}
        return {name: "…" if name in OF_THE_SERVER else part for name, part in kept.items()}
    if isinstance(value, str):
        return TIME.sub("[time]", value)
    return [without(part, left_out) for part in value] if isinstance(value, list) else value


# Streams


def told_stream(text: str, left_out: frozenset[str]) -> Told:
    stream = Told()
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if line]
        data = "\n".join(value for name, _, value in lines if name == "data")
        names = [value for name, _, value in lines if name == "event"]
        if data:
            _tell(stream, names, data, left_out)
        elif lines:
            _kind(stream, block)
    return stream


def _tell(stream: Told, names: list[str], data: str, left_out: frozenset[str]) -> None:
    if data == "[DONE]":
        _kind(stream, data)
        return
    payload: Json = without(json.loads(data), left_out)
    for kind in kinds_of(payload):
        _kind(stream, " ".join([*names, kind]))
    for path, value in leaves(payload, (str(payload.get("type", "chunk")),)):
        stream.seen.add(path)
        _add(stream.fields, path, value)


def _kind(stream: Told, kind: str) -> None:
    if not stream.order or stream.order[-1] != kind:
        stream.order.append(kind)


def kinds_of(payload: Json) -> Iterator[str]:
    """An event can be several at once: the last token comes with the reason for the end, or before it. Ends and usage
    may carry the server's fingerprint."""
    if "choices" not in payload:
        yield str(payload.get("type", sorted(payload)))
        return
    signed = ", signed" if payload.get("system_fingerprint") else ""
    for choice in payload["choices"]:
        delta = choice.get("delta", {"text": choice.get("text")})
        yield from (f"{name} of a choice" for name, value in delta.items() if value)
        if choice.get("finish_reason"):
            yield f"the end of a choice{signed}"
    if not payload["choices"]:
        yield f"usage{signed}"


def leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, (*path, name))
    elif isinstance(value, list) and path[-1] not in LISTS:
        for number, part in enumerate(value):
            place = part.get("index", number) if isinstance(part, dict) else number
            yield from leaves(part, (*path, str(place)))
    else:
        yield path, value


def _add(fields: dict[Path, Any], path: Path, value: Any) -> None:
    name = path[-1]
    if value is None or (value == "" and name in TEXTS):
        return
    if isinstance(value, str) and name in TEXTS:
        fields[path] = fields.get(path, "") + value
    elif isinstance(value, list):
        fields[path] = [*fields.get(path, []), *value]
    elif "usage" in path:
        fields[path] = value
    else:
        taken = fields.setdefault(path, [])
        if not taken or taken[-1] != value:
            taken.append(value)


# Values


def _compare(one: Any, other: Any, path: Path) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            yield from _compare(one.get(name, "(absent)"), other.get(name, "(absent)"), (*path, str(name)))
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (part, other_part) in enumerate(zip(one, other, strict=True)):
            yield from _compare(part, other_part, (*path, str(number)))
    elif not _is_same(one, other):
        yield f"{'.'.join(path)}: {_short(one)} directly, {_short(other)} through the router"


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= TOLERANCE
    return bool(one == other)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
