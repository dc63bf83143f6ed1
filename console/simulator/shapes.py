"""How the OpenAI completion and chat answers look: whole, and as events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any
from uuid import uuid4
from zlib import crc32

import orjson

from .bodies import Wanted
from .choice import Choice
from .faults import Faults
from .text import WORDS, tokenize
from .text import pieces as prompt_pieces

DONE = b"data: [DONE]\n\n"
FINGERPRINT = f"vllm-0.31.0-{crc32(b'simulated'):08x}"


def event(value: Any) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


class Shape:
    """One API's way to say things. `finish` of a choice is set on its last piece."""

    # vLLM swallows the error of a stream in which nothing was generated yet.
    swallows_errors = True

    def __init__(self, answer_id: str, wanted: Wanted, faults: Faults, details: bool) -> None:
        # The engine's, for what usage tells of its cache.
        self.block_size = 16
        self.answer_id = answer_id
        self.wanted = wanted
        self.faults = faults
        # Whether usage tells the cached tokens (--enable-prompt-tokens-details).
        self.details = details
        self.created = int(time.time())

    @staticmethod
    def id_of(prefix: str, in_header: str | None, in_body: str | None) -> str:
        given = in_body if in_header is None else in_header
        return prefix + (uuid4().hex[:16] if given is None else given)

    def greeting(self) -> bytes:
        """What goes out at once when a stream begins."""
        return b""

    def opening(self, choice: Choice) -> bytes:
        """What goes out before the first piece of a choice, together with it."""
        return b""

    def piece(self, choice: Choice, reasoning: str, text: str) -> bytes:
        raise NotImplementedError

    def closing(self, choices: list[Choice], failed: bool) -> bytes:
        """What goes out at the end of a stream."""
        return DONE

    def failure(self, error: dict[str, Any]) -> bytes | None:
        """What tells of an error within a stream; None: the connection just ends."""
        return event(error) + DONE

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        raise NotImplementedError

    def usage(self, choices: list[Choice]) -> dict[str, Any]:
        """Of a whole answer."""
        details = self._prompt_details(choices)
        if details is not None:
            details |= {"multimodal_tokens": None}
            details.setdefault("created_cache_tokens", None)
        counts = self._counts(choices) | {"prompt_tokens_details": details, "completion_tokens_details": None}
        return counts | self.faults.usage

    def _counts(self, choices: list[Choice]) -> dict[str, Any]:
        completion = sum(choice.tokens for choice in choices)
        prompt = sum(len(tokens) for tokens in self.wanted.prompts)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def _prompt_details(self, choices: list[Choice]) -> dict[str, Any] | None:
        cached = self.faults.cached_tokens
        if cached is None and self.details:
            cached = max((choice.cached_tokens for choice in choices), default=0)
        return None if cached is None else {"cached_tokens": cached}

    def hand_off(self, choices: list[Choice]) -> dict[str, Any] | None:
        return choices[0].hand_off if choices else None

    def _usage_event(self, choices: list[Choice], kind: str) -> bytes:
        head = {"id": self.answer_id, "object": kind, "created": self.created, "model": self.wanted.model}
        usage, details = self._counts(choices), self._prompt_details(choices)
        if details is not None:
            usage["prompt_tokens_details"] = details
        usage |= self.faults.usage
        return event(head | {"choices": [], "usage": usage, "system_fingerprint": FINGERPRINT} | self.faults.extra)

    def _is_simple(self) -> bool:
        """Whether each piece is the same but for its text, so that only that needs encoding."""
        wanted, faults = self.wanted, self.faults
        return (
            wanted.logprobs is None
            and not wanted.continuous_usage
            and not wanted.return_token_ids
            and not faults.extra
            and not faults.delta_extra
        )


class CompletionShape(Shape):
    def __init__(self, answer_id: str, wanted: Wanted, faults: Faults, details: bool) -> None:
        super().__init__(answer_id, wanted, faults, details)
        self._simple = self._is_simple()
        self._head = (
            f'data: {{"id":"{answer_id}","object":"text_completion","created":{self.created},'
            f'"model":{orjson.dumps(wanted.model).decode()},"choices":[{{"index":%d,"text":'
        ).encode()
        self._tail = (
            b',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
        )

    def piece(self, choice: Choice, reasoning: str, text: str) -> bytes:
        if self.wanted.echo and not choice.open:
            text = self.wanted.prompt_texts[choice.prompt] + text
        if self._simple and choice.finish is None:
            return self._head % choice.index + orjson.dumps(text) + self._tail
        pieces = choice.take_pieces()
        entry: dict[str, Any] = {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(pieces),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "prompt_token_ids": self._prompt_ids(choice),
            "token_ids": ids_of(pieces) if self.wanted.return_token_ids else None,
        }
        chunk: dict[str, Any] = {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.wanted.model,
            "choices": [entry],
        }
        if choice.finish and not self.wanted.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        if self.wanted.continuous_usage:
            chunk["usage"] = self._counts([choice])
        return event(chunk | self.faults.extra)

    def _prompt_ids(self, choice: Choice) -> list[int] | None:
        first = self.wanted.return_token_ids and not choice.open
        return self.wanted.prompts[choice.prompt] if first else None

    def closing(self, choices: list[Choice], failed: bool) -> bytes:
        if self.wanted.include_usage:
            return self._usage_event(choices, "text_completion") + DONE
        return DONE

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.wanted.model,
            "choices": [self._entry(choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self.usage(choices),
            "kv_transfer_params": self.hand_off(choices),
            "ec_transfer_params": None,
            "metrics": None,
        } | self.faults.extra

    def _entry(self, choice: Choice) -> dict[str, Any]:
        _, text = choice.take_text()
        pieces = choice.take_pieces()
        prompt = self.wanted.prompt_texts[choice.prompt] if self.wanted.echo else ""
        local = self.wanted.local_prompt
        return {
            "index": choice.index,
            "text": prompt + text,
            "logprobs": self._logprobs(prompt_pieces(prompt) + pieces, after_prompt=bool(prompt)),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "token_ids": ids_of(pieces) if self.wanted.return_token_ids else None,
            "prompt_logprobs": prompt_logprobs(self.wanted.prompts[choice.prompt]) if local else None,
            "prompt_token_ids": self.wanted.prompts[choice.prompt] if self.wanted.return_token_ids else None,
            "routed_experts": None,
        } | self.faults.delta_extra

    def _logprobs(self, pieces: list[str], after_prompt: bool = False) -> dict[str, Any] | None:
        """The first token of a prompt has no logprob."""
        if self.wanted.logprobs is None:
            return None
        offsets, position = [], 0
        for piece in pieces:
            offsets.append(position)
            position += len(piece)
        logprobs: list[float | None] = [_logprob(piece) for piece in pieces]
        tops: list[dict[str, float] | None] = [dict(_likely(piece, self.wanted.logprobs)) for piece in pieces]
        if after_prompt:
            logprobs[0] = tops[0] = None
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": pieces, "top_logprobs": tops}


class ChatShape(Shape):
    def __init__(self, answer_id: str, wanted: Wanted, faults: Faults, details: bool) -> None:
        super().__init__(answer_id, wanted, faults, details)
        self._simple = self._is_simple() and wanted.tool_name is None and not faults.tool_call_bytes
        self._head = (
            f'data: {{"id":"{answer_id}","object":"chat.completion.chunk","created":{self.created},'
            f'"model":{orjson.dumps(wanted.model).decode()},"choices":[{{"index":%d,"delta":{{"content":'
        ).encode()
        self._tail = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        self._tool_ids: dict[int, str] = {}

    def _prompt_details(self, choices: list[Choice]) -> dict[str, Any] | None:
        details = super()._prompt_details(choices)
        if details is not None:
            cacheable = len(self.wanted.prompts[0]) // self.block_size * self.block_size
            details["created_cache_tokens"] = max(0, cacheable - details["cached_tokens"])
        return details

    def opening(self, choice: Choice) -> bytes:
        prompt_ids = self.wanted.prompts[0] if self.wanted.return_token_ids else None
        delta = {"role": "assistant", "content": ""}
        entry = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._event(entry, choice, first={"prompt_token_ids": prompt_ids, "prompt_text": None})

    def piece(self, choice: Choice, reasoning: str, text: str) -> bytes:
        if self._simple and choice.finish is None and not reasoning:
            return self._head % choice.index + orjson.dumps(text) + self._tail
        events = []
        if reasoning:
            events.append(self._delta_event(choice, {self.faults.reasoning_field: reasoning}, last=False))
        if text or choice.finish or not reasoning:
            events.extend(self._content_events(choice, text))
        return b"".join(events)

    def _content_events(self, choice: Choice, text: str) -> Iterable[bytes]:
        name = self._tool_name()
        if name is None:
            yield self._delta_event(choice, {"content": text} if text else {}, last=True)
            return
        if choice.index not in self._tool_ids:
            self._tool_ids[choice.index] = f"chatcmpl-tool-{uuid4().hex[:16]}"
            call = {"id": self._tool_ids[choice.index], "type": "function", "index": 0, "function": {"name": name}}
            yield self._delta_event(choice, {"content": None, "tool_calls": [call]}, last=False)
            text = self._long_arguments() or text
        elif self.faults.tool_call_bytes:
            text = ""
        if text:
            delta = {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}
            yield self._delta_event(choice, delta, last=False)
        if choice.finish:
            yield self._delta_event(choice, {}, last=True)

    def _tool_name(self) -> str | None:
        return "simulated" if self.faults.tool_call_bytes else self.wanted.tool_name

    def _long_arguments(self) -> str:
        size = self.faults.tool_call_bytes
        return f'{{"text": "{"x" * max(0, size - 12)}"}}' if size else ""

    def _delta_event(self, choice: Choice, delta: dict[str, Any], last: bool) -> bytes:
        finish = choice.finish if last else None
        pieces = choice.take_pieces() if last else []
        entry: dict[str, Any] = {
            "index": choice.index,
            "delta": delta | self.faults.delta_extra,
            "logprobs": self._logprobs(pieces) if last else None,
            "finish_reason": finish,
        }
        if finish:
            entry["stop_reason"] = choice.stop_reason
        entry["token_ids"] = ids_of(pieces) if self.wanted.return_token_ids else None
        return self._event(entry, choice)

    def _event(self, entry: dict[str, Any], choice: Choice, first: dict[str, Any] | None = None) -> bytes:
        chunk: dict[str, Any] = {
            "id": self.answer_id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.wanted.model,
            "choices": [entry],
        } | (first or {})
        if entry["finish_reason"] and not self.wanted.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        if self.wanted.continuous_usage:
            chunk["usage"] = self._counts([] if first else [choice]) | {"completion_tokens_details": None}
        return event(chunk | self.faults.extra)

    def closing(self, choices: list[Choice], failed: bool) -> bytes:
        if self.wanted.include_usage and not failed:
            return self._usage_event(choices, "chat.completion.chunk") + DONE
        return DONE

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        local = self.wanted.body.get("prompt_logprobs") is not None
        return {
            "id": self.answer_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.wanted.model,
            "choices": [self._entry(choice) for choice in choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self.usage(choices),
            "prompt_logprobs": prompt_logprobs(self.wanted.prompts[0]) if local else None,
            "prompt_token_ids": self.wanted.prompts[0] if self.wanted.return_token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": self.hand_off(choices),
            "ec_transfer_params": None,
            "metrics": None,
        } | self.faults.extra

    def _entry(self, choice: Choice) -> dict[str, Any]:
        pieces = choice.take_pieces()
        return {
            "index": choice.index,
            "message": self.message(choice) | self.faults.delta_extra,
            "logprobs": self._logprobs(pieces),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "token_ids": ids_of(pieces) if self.wanted.return_token_ids else None,
            "routed_experts": None,
        }

    def message(self, choice: Choice) -> dict[str, Any]:
        reasoning, text = choice.take_text()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            self.faults.reasoning_field: reasoning or None,
        }
        name = self._tool_name()
        if name is not None and choice.finish == "length" and not self.faults.tool_call_bytes:
            # A call that the limit cut off is none: vLLM answers without it and without its text.
            message["content"] = ""
        elif name is not None:
            function = {"name": name, "arguments": self._long_arguments() or text}
            call = {"id": f"chatcmpl-tool-{uuid4().hex[:16]}", "type": "function", "function": function}
            message |= {"content": "", "tool_calls": [call]}
        return message

    def _logprobs(self, pieces: list[str]) -> dict[str, Any] | None:
        if self.wanted.logprobs is None:
            return None
        return {"content": [self._token_logprob(piece) for piece in pieces]}

    def _token_logprob(self, piece: str) -> dict[str, Any]:
        def entry(token: str, logprob: float) -> dict[str, Any]:
            return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

        tops = [entry(token, logprob) for token, logprob in _likely(piece, self.wanted.logprobs or 0)]
        return entry(piece, _logprob(piece)) | {"top_logprobs": tops}


def _logprob(piece: str) -> float:
    """Between -1 and 0, the same for the same token."""
    return -(crc32(piece.encode()) % 1000) / 1000


def _likely(piece: str, count: int) -> list[tuple[str, float]]:
    """The token itself and the next likely ones, the same for the same token."""
    first = _logprob(piece)
    others = [(word, first - 1 - rank) for rank, word in enumerate(WORDS[: max(0, count - 1)]) if word != piece]
    return [(piece, first), *others][:count]


def ids_of(pieces: list[str]) -> list[int]:
    return [token for piece in pieces for token in tokenize(piece)]


def prompt_logprobs(tokens: list[int]) -> list[dict[str, Any] | None]:
    entries: list[dict[str, Any] | None] = [None]
    for token in tokens[1:]:
        entries.append({str(token): {"logprob": -(token % 1000) / 1000, "rank": 1, "decoded_token": None}})
    return entries
