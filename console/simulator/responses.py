"""The Responses API (/v1/responses): read as a chat, answered as items and typed events."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson

from . import bodies, fields
from .bodies import Body, ServerFacts, Wanted
from .choice import Choice
from .faults import Faults
from .refusals import invalid, missing
from .shapes import Shape


def read(body: Body, facts: ServerFacts) -> Wanted:
    """Raises Refused."""
    body = fields.read(body, fields.RESPONSES)
    content = body.get("input")
    if content is None:
        raise missing("input", body)
    messages: list[Any] = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    if isinstance(content, str):
        messages.append({"role": "user", "content": content})
    elif isinstance(content, list):
        messages += [_message(item) for item in content]
    else:
        raise invalid("input", "Input should be a valid string", "string_type", content)
    limit = body.get("max_output_tokens")
    as_chat = {**body, "messages": messages, "max_tokens": limit, "top_logprobs": None}
    text = body.get("text") or {}
    if isinstance(text, dict) and (text.get("format") or {}).get("type") == "json_schema":
        as_chat["response_format"] = {"type": "json_schema", "json_schema": text["format"]}
    return bodies.chat(as_chat, facts)


def _message(item: object) -> object:
    if isinstance(item, dict) and item.get("type") in ("function_call", "function_call_output", "reasoning"):
        return {"role": str(item["type"]), "content": orjson.dumps(item).decode()}
    return item


class ResponsesShape(Shape):
    # vLLM cannot put its error into one of the API's events: the connection ends instead.
    swallows_errors = False

    def __init__(self, answer_id: str, wanted: Wanted, faults: Faults, details: bool) -> None:
        super().__init__(answer_id, wanted, faults, details)
        self._sequence = 0
        self._item_id = f"{'fc' if wanted.tool_name else 'msg'}_{uuid4().hex[:16]}"
        self._call_id = f"call_{uuid4().hex[:16]}"
        self._text: list[str] = []

    @staticmethod
    def id_of(prefix: str, in_header: str | None, in_body: str | None) -> str:
        """The body's as it is; no header counts."""
        return prefix + uuid4().hex[:16] if in_body is None else in_body

    def _event(self, kind: str, **values: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **values}
        self._sequence += 1
        return f"event: {kind}\ndata: ".encode() + orjson.dumps(data | self.faults.extra) + b"\n\n"

    def greeting(self) -> bytes:
        response = self._response("in_progress", [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def opening(self, choice: Choice) -> bytes:
        added = self._event("response.output_item.added", output_index=0, item=self._item("in_progress", ""))
        if self.wanted.tool_name:
            return added
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return added + self._part_event("response.content_part.added", part=part)

    def failure(self, error: dict[str, Any]) -> bytes | None:
        return None

    def _part_event(self, kind: str, **values: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **values)

    def piece(self, choice: Choice, reasoning: str, text: str) -> bytes:
        self._text.append(text)
        if self.wanted.tool_name:
            kind = "response.function_call_arguments.delta"
            return self._event(kind, item_id=self._item_id, output_index=0, delta=text)
        shown = (
            self._event("response.reasoning_text.delta", item_id=self._item_id, delta=reasoning) if reasoning else b""
        )
        return shown + self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def closing(self, choices: list[Choice], failed: bool) -> bytes:
        text, events = "".join(self._text), []
        if self.wanted.tool_name:
            kind = "response.function_call_arguments.done"
            events.append(self._event(kind, item_id=self._item_id, output_index=0, arguments=text))
        else:
            part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
            events.append(self._part_event("response.output_text.done", text=text, logprobs=[]))
            events.append(self._part_event("response.content_part.done", part=part))
        item = self._item("completed", text)
        done = item if self.wanted.tool_name else item | {"summary": []}
        events.append(self._event("response.output_item.done", output_index=0, item=done))
        # The event's name says "completed" also when the response's status is "incomplete", as vLLM's does.
        response = self._response(_status(choices), [item], choices)
        events.append(self._event("response.completed", response=response))
        return b"".join(events)

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        _, text = choices[0].take_text()
        return self._response(_status(choices), [self._item("completed", text)], choices)

    def _item(self, status: str, text: str) -> dict[str, Any]:
        if self.wanted.tool_name:
            return {
                "type": "function_call",
                "id": self._item_id,
                "call_id": self._call_id,
                "name": self.wanted.tool_name,
                "arguments": text,
                "status": status,
            }
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
        content = [part] if status == "completed" else []
        message = {"type": "message", "id": self._item_id, "role": "assistant", "status": status}
        return message | {"content": content, "phase": None}

    def _response(self, status: str, output: list[dict[str, Any]], choices: list[Choice] | None) -> dict[str, Any]:
        body = self.wanted.body
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.answer_id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.wanted.model,
            "output": output,
            "incomplete_details": incomplete,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": float(body.get("temperature", 1.0)),
            "top_p": body.get("top_p", 1.0),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "background": False,
            "max_output_tokens": self.wanted.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": body.get("reasoning"),
            "service_tier": "auto",
            "text": body.get("text"),
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": self._usage(choices) if choices else None,
            "user": body.get("user"),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": self.hand_off(choices) if choices else None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        } | self.faults.extra

    def _usage(self, choices: list[Choice]) -> dict[str, Any]:
        usage = self.usage(choices)
        details = usage.get("prompt_tokens_details") or {}
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": details.get("cached_tokens", 0),
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": usage["total_tokens"],
        }


def _status(choices: list[Choice]) -> str:
    return "incomplete" if choices and choices[0].finish == "length" else "completed"
