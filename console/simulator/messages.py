"""The Messages API (/v1/messages, Anthropic's): read as a chat, answered as content blocks and named events."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson

from . import bodies, fields
from .bodies import Body, ServerFacts, Wanted
from .choice import Choice
from .faults import Faults
from .refusals import Refused, invalid, missing
from .shapes import Shape

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read(body: Body, facts: ServerFacts) -> Wanted:
    """Raises Refused."""
    for name in ("model", "messages", "max_tokens"):
        if body.get(name) is None:
            raise missing(name, body)
    body = fields.read(body, fields.MESSAGES)
    if body["max_tokens"] == 0:
        raise invalid("max_tokens", "Value error, max_tokens must be positive", "value_error", 0)
    messages = body["messages"]
    system = body.get("system")
    as_chat: Body = {
        **{name: value for name, value in body.items() if name != "request_id"},  # This API has none.
        "messages": ([{"role": "system", "content": system}] if system else []) + messages,
        "tools": [_tool(tool) for tool in body.get("tools") or []],
        "stop": body.get("stop_sequences"),
        "stream_options": {"include_usage": True} if body.get("stream") else None,
    }
    as_chat["tool_choice"] = _tool_choice(body.get("tool_choice")) if as_chat["tools"] else None
    return bodies.chat(as_chat, facts)


def _tool(tool: object) -> Body:
    if not isinstance(tool, dict) or "name" not in tool:
        raise Refused("tools.name: Field required", "Bad Request")
    return {"type": "function", "function": {"name": tool["name"], "parameters": tool.get("input_schema") or {}}}


def _tool_choice(choice: object) -> object:
    kind = choice.get("type") if isinstance(choice, dict) else "auto"
    if kind == "tool" and isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return {"any": "required", "none": "none"}.get(str(kind), "auto")


class MessagesShape(Shape):
    def __init__(self, answer_id: str, wanted: Wanted, faults: Faults, details: bool) -> None:
        super().__init__(answer_id, wanted, faults, details)
        self._tool_id = f"toolu_{uuid4().hex[:16]}"
        self._block_kind: str | None = None
        self._block_index = 0

    def _event(self, kind: str, **values: Any) -> bytes:
        return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **values} | self.faults.extra) + b"\n\n"

    def opening(self, choice: Choice) -> bytes:
        message = self._message([], None, None, {"input_tokens": len(self.wanted.prompts[0]), "output_tokens": 0})
        return self._event("message_start", message=message)

    def piece(self, choice: Choice, reasoning: str, text: str) -> bytes:
        events = []
        if reasoning:
            events.append(self._begin_block("thinking", {"type": "thinking", "thinking": ""}))
            events.append(self._delta({"type": "thinking_delta", "thinking": reasoning}))
        if text and self.wanted.tool_name:
            events.append(self._begin_block("tool_use", self._block("", empty=True)))
            events.append(self._delta({"type": "input_json_delta", "partial_json": text}))
        elif text:
            events.append(self._begin_block("text", self._block("")))
            events.append(self._delta({"type": "text_delta", "text": text}))
        return b"".join(events)

    def _begin_block(self, kind: str, block: dict[str, Any]) -> bytes:
        """Nothing when a block of this kind is open."""
        if self._block_kind == kind:
            return b""
        end = self._end_block()
        self._block_kind = kind
        return end + self._event("content_block_start", index=self._block_index, content_block=block)

    def _end_block(self) -> bytes:
        if self._block_kind is None:
            return b""
        self._block_kind = None
        self._block_index += 1
        return self._event("content_block_stop", index=self._block_index - 1)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=self._block_index, delta=delta)

    def closing(self, choices: list[Choice], failed: bool) -> bytes:
        stop = self._event("message_stop")
        if failed:
            return stop
        reason, sequence = _stop(choices[0])
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return self._end_block() + self._event("message_delta", delta=delta, usage=self._usage(choices)) + stop

    @staticmethod
    def id_of(prefix: str, in_header: str | None, in_body: str | None) -> str:
        return Shape.id_of(prefix, in_header, None)

    def failure(self, error: dict[str, Any]) -> bytes | None:
        """vLLM takes the event that tells it of an error for a piece of the answer, which it is not."""
        quoted = repr(error)
        wrong = f"Field required [type=missing, input_value={quoted[:25]}...{quoted[-24:]}, input_type=dict]"
        address = "https://errors.pydantic.dev/2.14/v/missing"
        wrongs = "".join(
            f"\n{name}\n  {wrong}\n    For further information visit {address}" for name in ("model", "choices")
        )
        words = f"2 validation errors for ChatCompletionStreamResponse{wrongs}"
        return self._event("error", error={"type": "internal_error", "message": words})

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        _, text = choices[0].take_text()
        reason, sequence = _stop(choices[0])
        message = self._message([self._block(text)], reason, sequence, self._usage(choices))
        message["kv_transfer_params"] = self.hand_off(choices)
        return {name: value for name, value in message.items() if value is not None} | self.faults.extra

    def _block(self, text: str, empty: bool = False) -> dict[str, Any]:
        if not self.wanted.tool_name:
            return {"type": "text", "text": text}
        try:
            value = {} if empty else orjson.loads(text)
        except ValueError:
            value = {}
        return {"type": "tool_use", "id": self._tool_id, "name": self.wanted.tool_name, "input": value}

    def _message(
        self, content: list[Any], reason: str | None, sequence: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.wanted.model,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _usage(self, choices: list[Choice]) -> dict[str, Any]:
        usage = self.usage(choices)
        shown = {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is None:
            return shown
        cacheable = usage["prompt_tokens"] // self.block_size * self.block_size
        return shown | {"cache_creation_input_tokens": max(0, cacheable - cached), "cache_read_input_tokens": cached}


def _stop(choice: Choice) -> tuple[str, str | None]:
    if isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    return _STOP_REASONS.get(choice.finish or "stop", "end_turn"), None
