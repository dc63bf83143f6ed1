"""Reads a server's event stream as it passes: which events carry tokens, what the usage is, how it ended.

An event goes on as soon as it is complete, in the bytes it came in. The usual event of a stream differs from the one
before only in the text of its one delta, so the first such event is parsed and becomes a template: what has the same
bytes before and after the text needs no parsing. Any way of cutting the bytes gives the same result.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import orjson

from routing.paths import COHERE, TOKENS
from routing.pump import Shape
from routing.usage import with_counts_of_prefill

Dialect = Literal["chat", "completions", "responses", "messages", "tokens", "cohere"]
DIALECTS: Final[dict[str, Dialect]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    TOKENS: "tokens",
    COHERE: "cohere",
}
STREAMS: Final[dict[str, Dialect]] = {
    **DIALECTS,
    "/v1/audio/transcriptions": "chat",
    "/v1/audio/translations": "chat",
}
"""Whose events are read on their way. Those of speech are a chat's, with a finish reason for each piece of it."""
WITH_CHOICES: Final = ("chat", "completions", "tokens")
RESPONSE_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
MAX_EVENT_BYTES: Final = 8 * 2**20
TEXT_KEYS: Final = (b'"content":"', b'"text":"')
IDS_KEYS: Final = (b'"token_ids":[',)
"""What follows them, up to the next quote, is all that differs from token to token."""
NO_REASON: Final = b'"finish_reason":null'
FINGERPRINT: Final = b'"system_fingerprint"'
TOKEN_DELTAS: Final = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal", "function_call", "audio")
COHERE_DELTAS: Final = ("content-delta", "tool-plan-delta", "tool-call-delta")
BROKEN_ENDS: Final = ("abort", "error")
"""Finish reasons that say the engine gave the answer up."""

Json = dict[str, Any]


class EventTooLong(ValueError):
    """An event that never ends: not an event stream."""


@dataclass(slots=True)
class Seen:
    """What one event told."""

    counts: bool = False
    """It carries generated text, reasoning or a tool call."""
    ended: str = ""
    """Why the answer ended, when it did."""
    done: bool = False
    usage: Json | None = None
    usage_only: bool = False
    fingerprint: Any = None
    """Of the server, in a usage chunk: without one it would stand in the last chunk of the answer."""
    error: Json | None = None
    corrected: bool = False
    """Its usage was put right."""
    instead: bytes | None = None
    """What to pass on in the event's place."""


NOTHING: Final = Seen()
TOKEN: Final = Seen(counts=True)
DONE: Final = Seen(done=True)


class Scanner:
    """One stream's state. `ended`: why the model ended its answer. `done`: the stream's own end marker came."""

    __slots__ = (
        "_carried",
        "_dialect",
        "_drop_usage",
        "_last",
        "_open",
        "_tail",
        "carry",
        "done",
        "ended",
        "error",
        "prefill_usage",
        "prefix",
        "response_id",
        "suffix",
        "usage",
    )

    def __init__(self, dialect: Dialect, *, drop_usage: bool, answers: int = 1) -> None:
        """`answers`: how many share the stream, each with an end of its own; 0 when that is not known."""
        self._dialect: Dialect = dialect
        self._drop_usage = drop_usage
        self._open = set(range(answers if dialect in WITH_CHOICES else 0))
        """The indexes of answers without an end."""
        self._last = b""
        """The event that ended the answer, until it is known what of a usage chunk belongs into it."""
        self.carry: list[bytes] = []
        """The beginning of an event that is not complete yet, in the pieces it came in."""
        self._carried = 0
        """Its length in bytes."""
        self._tail = b""
        """Its last bytes, with which its end may begin."""
        self.prefix = b""
        """Of the usual event, before its text (`routing.template`); empty until one came."""
        self.suffix = b""
        self.prefill_usage: Json | None = None
        """The prefill server's, whose counts of cached tokens take the decode server's place."""
        self.response_id: str | None = None
        self.ended = ""
        self.done = False
        self.usage: Json | None = None
        self.error: Json | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the stream has told its whole answer. `[DONE]` alone does not: a failed load of the cache ends so."""
        return self.done and bool(self.ended) and not self._open and self.error is None

    @property
    def _is_cut_short(self) -> bool:
        """The end marker came before an end: it is held back, because clients read nothing that follows it."""
        return self.error is None and (not self.ended or bool(self._open))

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Takes any cut of the stream; returns the events it completes and how many of them carry tokens."""
        if self.carry:
            if not may_end(self._tail + data):
                self._keep(data)
                return b"", 0
            data = b"".join([*self.carry, data])
        out: list[bytes] = []
        counting = start = 0
        has_cr = data.find(b"\r") >= 0
        while (end := event_end(data, start, has_cr)) >= 0:
            seen = self._read(data, start, end)
            if self._last:
                out.append(self._release_last(seen))
            if self._is_last(seen):
                self._last = data[start:end]
            elif not (seen.usage_only and self._drop_usage) and not (seen is DONE and self._is_cut_short):
                out.append(data[start:end] if seen.instead is None else seen.instead)
            counting += seen.counts
            start = end
        self.carry, self._carried, self._tail = [], 0, b""
        if start < len(data):
            self._keep(data[start:])
        return b"".join(out), counting

    def _keep(self, data: bytes) -> None:
        """Pieces of a long event are not joined with each other before its end: that would cost time by its square."""
        self.carry.append(data)
        self._carried += len(data)
        self._tail = (self._tail + data)[-3:]
        if self._carried > MAX_EVENT_BYTES:
            raise EventTooLong(f"one event of the stream is longer than {MAX_EVENT_BYTES} bytes")

    def shape(self) -> Shape:
        """Of the usual event, and of the one that ends the answer: the usual one with a reason where it has none."""
        before, null, after = self.suffix.partition(NO_REASON)
        if not null or FINGERPRINT in self.prefix or FINGERPRINT in self.suffix or not after.endswith(b"}\n\n"):
            return self.prefix, self.suffix, b"", b"", self._drop_usage
        return self.prefix, self.suffix, before + NO_REASON[:-4], after, self._drop_usage

    def rest(self) -> bytes:
        """What was held back, when the stream is over."""
        last, self._last = self._last, b""
        return last

    def _is_last(self, seen: Seen) -> bool:
        """Engines put their fingerprint into the last event or into the usage chunk that follows it; one that we asked
        for and take out would take the fingerprint along."""
        return self._drop_usage and bool(seen.ended) and not self._open and self._dialect in WITH_CHOICES

    def _release_last(self, seen: Seen) -> bytes:
        event = self.rest()
        if not seen.usage_only or seen.fingerprint is None:
            return event
        payload = orjson.loads(data_of(event) or b"{}")
        return b"data: %b\n\n" % orjson.dumps({**payload, "system_fingerprint": seen.fingerprint})

    def _read(self, data: bytes, start: int, end: int) -> Seen:
        text = data_of(data[start:end])
        if text is None:
            return NOTHING
        if text.strip() == b"[DONE]":
            self.done = True
            return DONE
        try:
            payload = orjson.loads(text)
        except ValueError:
            return NOTHING
        if not isinstance(payload, dict):
            return NOTHING
        has_choices = self._dialect in WITH_CHOICES
        seen = self._read_choices(payload) if has_choices else self._read_typed(payload)
        self._note(seen)
        if seen is TOKEN:
            self._learn(data[start:end])
        elif seen.corrected:
            seen.instead = data[start:end].replace(text, orjson.dumps(payload), 1)
        return seen

    def _note(self, seen: Seen) -> None:
        self.ended = seen.ended or self.ended
        self.done = self.done or seen.done
        self.usage = seen.usage or self.usage
        self.error = seen.error or self.error

    def _read_choices(self, payload: Json) -> Seen:
        if payload.get("error"):
            return Seen(error=_error_of(payload["error"]))
        usage, choices = _usage_of(payload), payload.get("choices")
        if not choices:
            fingerprint, corrected = payload.get("system_fingerprint"), self._correct(payload)
            return Seen(usage=usage, usage_only=usage is not None, fingerprint=fingerprint, corrected=corrected)
        counts, ended = False, ""
        for choice in choices:
            counts = (bool(choice.get("token_ids")) if self._dialect == "tokens" else has_token(choice)) or counts
            self._open.add(choice.get("index", 0))
            if reason := choice.get("finish_reason"):
                self._open.discard(choice.get("index", 0))
                ended = str(reason)
        if counts and not ended and usage is None:
            return TOKEN
        broken = {"message": f"the engine gave up: {ended}"} if ended in BROKEN_ENDS else None
        return Seen(counts=counts, ended=ended, usage=usage, error=broken)

    def _read_typed(self, payload: Json) -> Seen:
        if payload.get("type") == "response.created":
            self.response_id = payload["response"].get("id")
        seen = read_typed(payload)
        holder = payload.get("message") or payload.get("response") or payload
        if self._dialect == "cohere":
            holder = payload.get("delta")
        if seen is TOKEN or not isinstance(holder, dict) or not self._correct(holder):
            return seen
        return replace(seen, corrected=True)

    def _correct(self, holder: Json) -> bool:
        """Puts the prefill server's count into the usage. False: there was nothing to put right."""
        usage = holder.get("usage")
        if self.prefill_usage is None or not isinstance(usage, dict):
            return False
        corrected = with_counts_of_prefill(usage, self.prefill_usage)
        if corrected is None:
            return False
        holder["usage"] = corrected
        return True

    def _learn(self, event: bytes) -> None:
        """Takes the event as template when the text of its one delta is all that its bytes leave open."""
        for key in IDS_KEYS if self._dialect == "tokens" else TEXT_KEYS:
            at = event.find(key)
            if at < 0 or event.find(key, at + 1) >= 0:
                continue
            text = at + len(key)
            end = event.find(b'"', text)
            if end > text and b"\\" not in event[text:end]:
                self.prefix, self.suffix = event[:text], event[end:]
            return


def _usage_of(payload: Json) -> Json | None:
    usage = payload.get("usage")
    return usage if isinstance(usage, dict) else None


def has_token(choice: Json) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in TOKEN_DELTAS)


def read_typed(payload: Json) -> Seen:
    """The events of the responses and messages APIs and of Cohere's, which name their type."""
    kind = str(payload.get("type", ""))
    if kind in COHERE_DELTAS:
        return TOKEN
    if kind == "message-end":
        return _read_message_end(payload.get("delta") or {})
    if kind == "content_block_delta":
        return TOKEN if any(value for name, value in payload["delta"].items() if name != "type") else NOTHING
    if kind.endswith(".delta") and payload.get("delta"):
        return TOKEN
    if kind == "message_delta":
        return _read_message_delta(payload)
    if kind == "message_stop":
        return DONE
    if kind in RESPONSE_ENDS:
        return _read_response_end(kind, payload.get("response") or {})
    if kind == "error":
        return Seen(error=_error_of(payload.get("error") or payload), done=True)
    return NOTHING


def _read_message_delta(payload: Json) -> Seen:
    """An engine that failed before its first token still says `end_turn`, with no token in its usage."""
    usage = _usage_of(payload) or {}
    reason = payload.get("delta", {}).get("stop_reason") or ""
    return Seen(ended=reason if usage.get("output_tokens") != 0 else "", usage=usage)


def _read_message_end(delta: Json) -> Seen:
    """Likewise: an engine that failed before its first token ends the message all the same."""
    if delta.get("error"):
        return Seen(error=_error_of(delta["error"]))
    usage = _usage_of(delta)
    has_tokens = usage is None or (usage.get("tokens") or {}).get("output_tokens") != 0
    return Seen(ended=str(delta.get("finish_reason") or "") if has_tokens else "", usage=usage)


def _read_response_end(kind: str, response: Json) -> Seen:
    usage = _usage_of(response) or {}
    error = _error_of(response.get("error") or {}) if kind == "response.failed" else None
    return Seen(ended=kind, done=True, usage=usage, error=error)


def _error_of(error: object) -> Json:
    return error if isinstance(error, dict) else {"message": str(error)}


def may_end(data: bytes) -> bool:
    return data.find(b"\n\n") >= 0 or data.find(b"\r\n\r\n") >= 0


def event_end(data: bytes, start: int, has_cr: bool) -> int:
    """Where the event that begins at `start` ends, its blank line included; -1 when it is not complete."""
    end = data.find(b"\n\n", start)
    if has_cr:
        crlf = data.find(b"\r\n\r\n", start)
        if crlf >= 0 and (end < 0 or crlf < end):
            return crlf + 4
    return end + 2 if end >= 0 else -1


def data_of(event: bytes) -> bytes | None:
    """The event's data; None for a comment, or an event without data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
