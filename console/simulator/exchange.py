"""One request that generates: its choices go to the engine, what comes back goes to the client as it comes."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from .bodies import Wanted
from .choice import Choice, planned_end
from .contracts import EngineLike, EngineRequest, Output
from .faults import Faults
from .refusals import error_json
from .shapes import DONE, Shape
from .wire import Reply

DEAD = error_json(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError", None, 500
)
FAILED = error_json("Internal server error", "InternalServerError", None, 500)
STREAM_HEADERS = [("content-type", "text/event-stream; charset=utf-8")]


class Exchange:
    def __init__(self, engine: EngineLike, reply: Reply, wanted: Wanted, shape: Shape, faults: Faults) -> None:
        self._engine = engine
        self._reply = reply
        self._wanted = wanted
        self._shape = shape
        self._faults = faults
        self._over = False
        self._choices = self._make_choices()
        self._unfinished = len(self._choices)
        reply.on_close = self._abort
        reply.on_resume = self._resume

    def _make_choices(self) -> list[Choice]:
        wanted, reasoning = self._wanted, self._faults.reasoning_tokens
        choices: list[Choice] = []
        for prompt in range(len(wanted.prompts)):
            for child in range(wanted.n):
                request_id = self._internal_id(prompt, child)
                choices.append(Choice(wanted, len(choices), prompt, request_id, reasoning))
        return choices

    def _internal_id(self, prompt: int, child: int) -> str:
        """As vLLM appends to the id that the client sees: equal ids of two requests do not collide."""
        answer_id = self._shape.answer_id
        middle = f"-{prompt}" if answer_id.startswith("cmpl-") else ""
        prefix = f"{child}_" if self._wanted.n > 1 else ""
        return f"{prefix}{answer_id}{middle}-{uuid4().hex[:8]}"

    def begin(self) -> None:
        """The headers of a stream go out before anything is computed, as vLLM's do."""
        if self._wanted.stream:
            self._reply.start(200, STREAM_HEADERS, None)
            if greeting := self._shape.greeting():
                self._reply.write(greeting)
        if self._wanted.refusal is not None:
            self._over = True
            self._tell(self._wanted.refusal.as_json())
            return
        tokens, reason = planned_end(self._wanted)
        for choice in self._choices:
            request = EngineRequest(
                request_id=choice.request_id,
                tokens=self._wanted.prompts[choice.prompt],
                max_tokens=tokens,
                final_reason=reason,
                salt=self._wanted.salt,
                kv=self._wanted.kv,
                n=self._wanted.n,
                local_prompt=self._wanted.local_prompt,
            )
            self._engine.submit(request, self._sink(choice))

    def _sink(self, choice: Choice) -> Any:
        return lambda output: self._receive(choice, output)

    def _receive(self, choice: Choice, output: Output) -> None:
        if self._over or choice.finish is not None:
            return
        if output.finish in ("error", "dead"):
            self._fail(choice, DEAD if output.finish == "dead" else FAILED)
            return
        if choice.take(output):
            self._unfinished -= 1
            if output.finish is None:
                self._engine.stop(choice.request_id)
        if self._wanted.stream:
            self._push(choice)
        if self._unfinished == 0:
            self._complete()

    def _push(self, choice: Choice) -> None:
        """Tokens collect while the client reads too slowly, as they do between vLLM's engine and its server."""
        if choice.finish is None and (choice.pending < self._faults.tokens_per_chunk or self._reply.paused):
            return
        self._open(choice)
        reasoning, text = choice.take_text()
        self._reply.write(self._shape.piece(choice, reasoning, text))
        choice.open = True

    def _open(self, choice: Choice) -> None:
        if choice.open:
            return
        opening = self._shape.opening(choice)
        if opening:
            self._reply.write(opening)

    def _resume(self) -> None:
        for choice in self._choices:
            if choice.pending and choice.finish is None and self._wanted.stream and not self._over:
                self._push(choice)

    def _complete(self) -> None:
        self._over = True
        if self._wanted.stream:
            self._reply.write(self._shape.closing(self._choices, failed=False))
            self._reply.finish()
            return
        self._reply.json(200, self._shape.whole(self._choices), self._reply.told_of_load)

    def _fail(self, choice: Choice, error: dict[str, Any]) -> None:
        self._over = True
        self._stop_others(choice)
        if not self._wanted.stream:
            self._reply.json(500, error)
            return
        if error is FAILED and choice.tokens == 0 and self._shape.swallows_errors:
            # vLLM swallows the error when nothing was generated yet.
            self._open(choice)
            self._reply.write(self._shape.closing(self._choices, failed=True))
            self._reply.finish()
            return
        self._tell(error)

    def _tell(self, error: dict[str, Any]) -> None:
        """Inside the stream."""
        told = self._shape.failure(error)
        if told is None:
            self._reply.break_off()
            return
        self._reply.write(told)
        self._reply.finish()

    def _stop_others(self, failed: Choice) -> None:
        for choice in self._choices:
            if choice is not failed and choice.finish is None:
                self._engine.abort(choice.request_id)

    def _abort(self) -> None:
        """The client has left."""
        self._over = True
        for choice in self._choices:
            if choice.finish is None:
                self._engine.abort(choice.request_id)

    def end_abruptly(self) -> None:
        """The server stops: streams end with [DONE], other answers stay away."""
        if self._over:
            return
        self._over = True
        if self._wanted.stream:
            self._reply.write(DONE)
            self._reply.finish()
        else:
            self._reply.full(500, b"Internal Server Error", "text/plain; charset=utf-8")
