"""The life of one request, from its last byte read to its last byte answered."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from routing.answer import Answer
from routing.ask import Ask, read_ask, request_id, request_id_in
from routing.attempt import Attempt, Job
from routing.backend import Backend
from routing.bodies import DecodeBody, answers_of
from routing.choose import Choice, Chooser, Layout
from routing.clock import Clock
from routing.cors import comes_from_elsewhere, is_preflight
from routing.errors import Answered, ConnectionLost, LegError, NotInTable, Refusal, StreamError, TimedOut, UnknownName
from routing.handoff import HandoffTooOld
from routing.limits import fit, have_one_limit, is_too_long, refuse_in_own_words
from routing.paths import kind_of, methods_of
from routing.record import Record
from routing.reply import Reply, Request
from routing.sse import DIALECTS, WITH_CHOICES

if TYPE_CHECKING:
    from routing.app import Router

logger = logging.getLogger(__name__)
Phase = Literal["waiting", "unwanted", "running", "over"]


class Exchange:
    """One request. Its task is cancelled when the client leaves; whatever it holds is given back then."""

    __slots__ = (
        "_answer",
        "_attempt",
        "_clock",
        "_layouts",
        "_phase",
        "_reply",
        "_request",
        "_router",
        "_table",
        "_task",
        "client_left",
        "is_aside",
        "on_over",
        "record",
    )

    def __init__(self, router: "Router", request: Request, reply: Reply) -> None:
        request.path = request.path.rstrip("/")
        self.record = Record(request_id(request), "", request.path, False, time.time())
        self._router = router
        self._request = request
        self._reply = reply
        self._answer = Answer(reply, request, self.record, router.origins)
        self._clock = Clock()
        self._table = router.table
        self._layouts = router.layouts
        self.client_left = False
        self.is_aside = False
        """A question about servers, or a browser's whether it may send a request, and none itself: nobody counts it."""
        self.on_over: Callable[[], None] | None = None
        """Called when everything it held is given back, whatever became of it."""
        self._phase: Phase = "waiting"
        self._task: asyncio.Task[None] | None = None
        self._attempt: Attempt | None = None

    def begin(self) -> None:
        self._reply.on_disconnect = self.leave
        self._router.enter(self)
        self._router.turnstile.enter(self._start)

    def _start(self) -> None:
        if self._task is None:
            self._task = self._router.turnstile.loop.create_task(self._run())

    def leave(self) -> None:
        """The client is gone: both legs stop. Nothing happens when the exchange is over."""
        if self._phase == "over":
            return
        self.client_left = True
        # A prefill server's answer may have come in the same turn of the loop: it is read before it is judged.
        asyncio.get_running_loop().call_soon(self._give_up)

    def _give_up(self) -> None:
        if self._attempt is not None and self._attempt.has_handoff_coming:
            asyncio.get_running_loop().call_later(HANDOFF_COMES_WITHIN_S, self._cancel)
        else:
            self._cancel()

    def stop(self) -> "asyncio.Task[None]":
        """The router goes: the client sees its connection break. One that waits to begin does so, and ends."""
        self._cancel()
        self._start()
        assert self._task is not None
        return self._task

    def _cancel(self) -> None:
        """A task that is cancelled before its first step would never run, nor give anything back."""
        if self._phase == "running":
            assert self._task is not None
            self._task.cancel()
        elif self._phase == "waiting":
            self._phase = "unwanted"

    async def _run(self) -> None:
        unwanted, self._phase = self._phase == "unwanted", "running"
        try:
            await self._answered(unwanted)
        except Exception:
            logger.exception("request %s got no answer", self.record.request_id)
            self._answer.break_off()
        finally:
            self._finish()

    async def _answered(self, unwanted: bool) -> None:
        try:
            if unwanted:
                raise asyncio.CancelledError
            await self._serve()
        except Refusal as refusal:
            self._answer.refuse(refusal)
        except LegError as error:
            self._answer.fail(error)
        except asyncio.CancelledError:
            self._cancelled()
        except RecursionError:
            self._answer.refuse(Refusal(400, "The body is nested too deeply. Send it with fewer levels."))
        except Exception:
            logger.exception("request %s broke the router", self.record.request_id)
            self._answer.refuse(
                Refusal(500, "The router failed on this request; its log says why.", kind="RouterError")
            )

    def _cancelled(self) -> None:
        self.record.outcome = "cancelled" if self.client_left else "failed"
        self.record.error = "the client left" if self.client_left else "the router was stopped"
        self._answer.break_off()

    def _finish(self) -> None:
        self._phase = "over"
        self._reply.on_disconnect = None
        self._attempt = None  # It refers to this exchange; without the cycle both are freed at once.
        self._request.body = b""  # The client's connection keeps its request, and may stay open for long.
        self._answer.stop_comments()
        self.record.finished_ms = self._clock.now_ms()
        self._router.leave(self)
        if self.on_over is not None:
            self.on_over()

    # Serving

    async def _serve(self) -> None:
        kind = self._check_path()
        refusal = await self._serve_if_known(kind)
        if refusal is not None and await self._has_newer_table():
            refusal = await self._serve_if_known(kind)
        if isinstance(refusal, UnknownName):
            await self._router.names.learn()
            refusal = await self._serve_if_known(kind)
        try:
            if refusal is not None:
                raise refusal
        finally:
            refusal = None  # It refers to this frame.

    async def _serve_if_known(self, kind: str) -> NotInTable | None:
        try:
            await self._serve_by_table(kind)
        except NotInTable as unknown:
            return unknown
        return None

    async def _serve_by_table(self, kind: str) -> None:
        if kind == "models":
            body, headers = await self._router.models(self._request)
            self._answer.json(body, headers=headers)
            return
        if kind in ("preflight", "probe"):
            self._answer.whole(*await self._router.ask_any(self._request))
            return
        ask = await read_ask(self._request, self._table, self._router.names, kind, self._router.responses)
        self.record.request_id = request_id_in(ask.body, self._request) or self.record.request_id
        self.record.deployment = ask.deployment.name
        self.record.streamed = ask.streamed
        self.record.estimated_prompt_tokens = ask.wish.prompt_tokens
        await self._within_total(ask)

    async def _has_newer_table(self) -> bool:
        """Whoever was just given a key may use it at once, though this router has not heard of it yet."""
        before = self._table
        await self._router.catch_up()
        self._table, self._layouts = self._router.table, self._router.layouts
        return self._table is not before

    def _check_path(self) -> str:
        request = self._request
        if request.too_large:
            limit = self._router.max_body_bytes
            raise Refusal(413, f"The body is longer than the limit of {limit} bytes. Send a shorter one, or raise it.")
        kind, methods = kind_of(request.path), methods_of(request.path)
        if kind is None:
            message = f"{request.path} is not served here. /v1/models names the models; see the engine's API for paths."
            raise Refusal(404, message, kind="NotFoundError")
        if not PLAIN_QUERY.fullmatch(request.query):
            raise Refusal(400, "The query holds characters that no address may hold. Send them percent-encoded.")
        self.is_aside = kind == "probe"
        if request.method not in methods:
            if is_preflight(request):
                self.is_aside = True
                return "preflight"
            words = f"Use {' or '.join(methods)} for {request.path}."
            raise Refusal(405, words, kind="MethodNotAllowed", allow=", ".join(methods))
        return kind

    async def _within_total(self, ask: Ask) -> None:
        policy = ask.deployment.policy
        # A comment sends the head, and who may read the answer is for the server to say in it.
        if ask.streamed and policy.comment_every_s is not None and not comes_from_elsewhere(self._request):
            self._answer.comment_every(policy.comment_every_s)
        layout = self._layouts[ask.deployment.name]
        if ask.listed is not None:
            layout = await self._router.names.narrowed(layout, ask.listed)
        tries = Tries(layout, ask)
        if policy.timeouts.total_s is None:
            await self._attempts(ask, tries)
            return
        try:
            async with asyncio.timeout(policy.timeouts.total_s):
                await self._attempts(ask, tries)
        except TimeoutError as error:
            limit_s = policy.timeouts.total_s
            raise TimedOut(f"the answer was not complete within the total limit of {limit_s:g} s") from error

    async def _attempts(self, ask: Ask, tries: "Tries") -> None:
        """Tries until an answer is under way, the budget is spent, or nothing is left to try."""
        dialect = DIALECTS.get(self._request.path)
        # Where answers come by turns each has its own end, and the engine's fingerprint only without a usage chunk.
        counts_by_usage = dialect in WITH_CHOICES and answers_of(self._request.path, ask.body) == 1
        body = DecodeBody(self._request.body, ask.body, touched=ask.touched, counts_by_usage=counts_by_usage)
        job = Job(ask, self._answer, self.record, self._clock, body, self._router, lambda: self.client_left)
        self._router.budget.deposit()
        while True:
            choice = await self._choose(tries)
            self._attempt = attempt = Attempt(job, choice)
            try:
                await attempt.run()
                return
            except LegError as error:
                self.record.error = str(error)
                self._router.count_failure(choice, error, on_prefill=attempt.on_prefill)
                if self.client_left:  # While the prefill server's answer came, of which nothing is to be freed now.
                    raise asyncio.CancelledError from error
                if not self._may_retry(error, tries.layout, is_disowned=self._is_disowned(ask, attempt, choice, error)):
                    raise
                tries.failed(attempt, choice, error)
            finally:
                self._attempt = None
                self._router.look_after(attempt, job, tries.layout)

    def _is_disowned(self, ask: Ask, attempt: Attempt, choice: Choice, error: LegError) -> bool:
        """The server does not list the name any more under which it was chosen."""
        if ask.listed is None:
            return False
        server = choice.prefill if attempt.on_prefill and choice.prefill is not None else choice.decode
        return self._router.names.disowns(server, ask.listed, error)

    def _may_retry(self, error: LegError, layout: Layout, *, is_disowned: bool) -> bool:
        is_clients = isinstance(error, Answered | StreamError) and error.is_clients
        if self._answer.committed or (is_clients and not is_disowned):
            return False
        return self.record.attempts <= layout.policy.retries and self._router.budget.withdraw()

    async def _choose(self, tries: "Tries") -> Choice:
        record = self.record
        choice = tries.next()
        if choice is None:
            choice = tries.go_on_with(*await self._router.wait_for(tries.ask))
        if choice.prefill is not None and await self._is_too_long(tries.ask, choice.prefill, choice.decode):
            await self._let_refuse(tries.ask, choice.prefill, choice.decode)
            tries.go_whole(TOO_LONG)
            choice = tries.next() or choice
        tries.remember(choice)
        record.attempts = tries.number
        record.route, record.reason = choice.route, choice.reason
        record.prefill_server = choice.prefill.id if choice.prefill else None
        record.decode_server = choice.decode.id
        record.chosen_ms = self._clock.now_ms()
        record.prefill_sent_ms = record.prefill_answered_ms = record.decode_sent_ms = record.decode_opened_ms = None
        self._answer.decode_name = choice.decode.name
        self._answer.prefill_name = choice.prefill.name if choice.prefill else ""
        return choice

    async def _let_refuse(self, ask: Ask, prefill: Backend, decode: Backend) -> None:
        """Raises the prefill server's refusal of a request that is too long for both servers."""
        if not have_one_limit(prefill, decode):
            return
        try:
            await refuse_in_own_words(prefill, ask, self.record.request_id)
        except Answered:
            self.record.route, self.record.reason = "direct", TOO_LONG
            self.record.prefill_server, self._answer.prefill_name = prefill.id, prefill.name
            raise

    async def _is_too_long(self, ask: Ask, prefill: Backend, decode: Backend) -> bool:
        found = fit(ask.body, ask.prompt_bytes, prefill, decode)
        if found == "unknown" and self.record.path in COUNTABLE:
            return await is_too_long(prefill, decode, ask.body, [(b"content-type", b"application/json")])
        return found == "too long"


HANDOFF_COMES_WITHIN_S = 0.8
"""How long the rest of a prefill server's answer is waited for when the client has left."""
PLAIN_QUERY: Final = re.compile(rb"[\x21-\x7e]*")
TOO_LONG: Final = "too long for the decode server"
COUNTABLE: Final = ("/v1/chat/completions", "/v1/completions")
"""Whose bodies an engine's tokenizer reads as they are."""


class Tries:
    """What one request has tried, and what it may try next."""

    __slots__ = (
        "_avoid",
        "_decode_failed_with_handoff",
        "_last",
        "_last_error",
        "_why_fallback",
        "ask",
        "layout",
        "number",
    )

    def __init__(self, layout: Layout, ask: Ask) -> None:
        self.ask = ask
        self.number = 0
        self.layout = layout
        self._avoid: set[str] = set()
        self._last_error: LegError | None = None
        self._last: Choice | None = None
        self._why_fallback = ""
        self._decode_failed_with_handoff = False

    def next(self) -> Choice | None:
        """None: nothing can do it now, but waiting may help. Raises the last failure, or `Refusal`."""
        self.number += 1
        chooser = Chooser(self.layout, self.ask.wish, time.monotonic(), frozenset(self._avoid))
        choice: Choice | None
        try:
            choice = chooser.choose()
        except Refusal as refusal:
            choice = self._again_without_handoff()
            if choice is None and self._last_error is not None:
                raise self._forget_last_error() from refusal
            if choice is None and self.layout.policy.wait_for_server_s <= 0:
                raise
        if choice is not None and choice.route == "fallback" and self._why_fallback:
            choice = Choice("fallback", f"fallback: {self._why_fallback}", choice.decode)
        self._last = choice
        return choice

    def go_on_with(self, layout: Layout, choice: Choice) -> Choice:
        """It waited: what is tried from now on is what is there by now."""
        self.layout = layout
        self._last = choice
        return choice

    def go_whole(self, why: str) -> None:
        """Not a failure: the same try again, by one server."""
        self.number -= 1
        self.ask.wish = replace(self.ask.wish, whole=why)

    def failed(self, attempt: Attempt, choice: Choice, error: LegError) -> None:
        self._last_error = error.with_traceback(None)  # Which refers to the frame that refers to this.
        if isinstance(error, HandoffTooOld):
            return
        if attempt.on_prefill and choice.prefill is not None:
            self._avoid.add(choice.prefill.id)
            self._why_fallback = f"prefill {in_a_word(error)}"
            return
        self._avoid.add(choice.decode.id)
        self._why_fallback = f"decode {in_a_word(error)}"
        self._decode_failed_with_handoff = attempt.handoff is not None

    def _forget_last_error(self) -> LegError:
        """To raise it: the frames that it passes refer to this."""
        error, self._last_error = self._last_error, None
        assert error is not None
        return error

    def _again_without_handoff(self) -> Choice | None:
        """The only decode server failed with a hand-off: without one it may still do the whole request, once."""
        if self._last is None or not self._decode_failed_with_handoff or self.layout.policy.when_no_pair == "refuse":
            return None
        self._decode_failed_with_handoff = False
        return Choice("fallback", "fallback", self._last.decode)

    def remember(self, choice: Choice) -> None:
        """Where this session and this prompt are cached now."""
        server, wish = choice.prefill or choice.decode, self.ask.wish
        if wish.session is not None:
            self.layout.sessions.put(wish.session, server.id)
        for _, key in wish.prefix:
            self.layout.prefixes.put(key, server.id)


def in_a_word(error: LegError) -> str:
    if isinstance(error, Answered):
        return str(error.status)
    if isinstance(error, StreamError):
        return "failed in its stream"
    if isinstance(error, TimedOut):
        return "timed out"
    return "connection lost" if isinstance(error, ConnectionLost) else "unreachable"
