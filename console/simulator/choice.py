"""One choice of an answer: turns tokens of the engine into text, and finds its end."""

from __future__ import annotations

from typing import Any

from .bodies import Wanted
from .contracts import Output
from .text import EOS_TOKEN_ID, FixedText, FreeText, Script, token_id


def script_for(wanted: Wanted, seed: int) -> Script:
    if wanted.forced_text is not None:
        return FixedText(wanted.forced_text)
    return FreeText(seed ^ wanted.seed)


def planned_end(wanted: Wanted) -> tuple[int, str]:
    """After how many tokens the engine ends a choice, and with which finish_reason."""
    natural = wanted.natural_tokens
    if wanted.forced_text is not None:
        natural = FixedText(wanted.forced_text).length
    if natural is not None and natural <= wanted.max_tokens:
        return natural, "stop"
    return wanted.max_tokens, "length"


class Choice:
    """`text` and `reasoning` hold what has not been sent yet when streaming, and everything otherwise."""

    __slots__ = ("_held", "_script", "_unseen_stop", "_wanted", "cached_tokens", "finish", "hand_off", "index", "open",
                 "pending", "pieces", "prompt", "reasoning", "reasoning_tokens", "request_id", "stop_reason", "text",
                 "tokens")  # fmt: skip

    def __init__(self, wanted: Wanted, index: int, prompt: int, request_id: str, reasoning_tokens: int) -> None:
        self._wanted = wanted
        self._script: Script | None = None
        # The end of the text so far that may be the beginning of a stop string.
        self._held = ""
        self._unseen_stop = max((len(stop) for stop in wanted.stop), default=1) - 1
        self.index = index
        self.prompt = prompt
        self.request_id = request_id
        self.reasoning_tokens = reasoning_tokens
        self.tokens = 0
        self.pending = 0
        self.text: list[str] = []
        self.reasoning: list[str] = []
        # For logprobs and token ids only.
        self.pieces: list[str] = []
        self.finish: str | None = None
        self.stop_reason: int | str | None = None
        self.cached_tokens = 0
        self.hand_off: dict[str, Any] | None = None
        self.open = False

    def take(self, output: Output) -> bool:
        """Whether the choice is finished."""
        if self._script is None:
            self._script = script_for(self._wanted, output.seed)
        self.cached_tokens = output.cached_tokens
        for _ in range(output.tokens):
            self._take_token(self._script.piece(self.tokens))
            if self.finish is not None:
                break
        if output.finish is not None:
            self.hand_off = output.hand_off
            if self.finish is None:
                self._end(output.finish)
        return self.finish is not None

    def _take_token(self, piece: str) -> None:
        wanted = self._wanted
        self.tokens += 1
        self.pending += 1
        if wanted.logprobs is not None or wanted.return_token_ids or wanted.gives_ids:
            self.pieces.append(piece)
        if self.tokens <= self.reasoning_tokens:
            self.reasoning.append(piece)
            return
        if wanted.stop_token_ids and self.tokens >= wanted.min_tokens:
            token = token_id(piece) if piece else EOS_TOKEN_ID
            if token in wanted.stop_token_ids:
                self.stop_reason = token
                self._end("stop")
                return
        if wanted.stop:
            self._look_for_stop(piece)
        else:
            self.text.append(piece)

    def _look_for_stop(self, piece: str) -> None:
        text = self._held + piece
        if self.tokens >= self._wanted.min_tokens:
            found = [(text.find(stop), stop) for stop in self._wanted.stop if stop and stop in text]
            if found:
                position, stop = min(found)
                self._held = text[: position + (len(stop) if self._wanted.include_stop else 0)]
                self.stop_reason = stop
                self._end("stop")
                return
        keep = len(text) - self._unseen_stop
        self.text.append(text[: max(0, keep)])
        self._held = text[max(0, keep) :]

    def _end(self, reason: str) -> None:
        if self._held:
            self.text.append(self._held)
            self._held = ""
        if reason == "stop" and self._wanted.tool_name and not self._wanted.tool_is_named:
            reason = "tool_calls"
        self.finish = reason

    def take_text(self) -> tuple[str, str]:
        """The reasoning and the content not taken before."""
        reasoning = "".join(self.reasoning) if self.reasoning else ""
        text = "".join(self.text)
        self.reasoning, self.text = [], []
        self.pending = 0
        return reasoning, text

    def take_pieces(self) -> list[str]:
        pieces, self.pieces = self.pieces, []
        return pieces
