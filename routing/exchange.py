"""The life of one request, from its last byte read to its last byte answered."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import orjson

from routing.ask import Ask, headers_for_servers, read_ask, request_id
from routing.bodies import DecodeBody, prefill_body
from routing.choose import Choice, Chooser, Layout
from routing.errors import (
    Answered,
    BadAnswer,
    ConnectionLost,
    Headers,
    LegError,
    Refusal,
    TimedOut,
    error_event,
)
from routing.leg import Leg
from routing.loads import Taken, take_handoff
from routing.paths import kind_of, method_of
from routing.record import Record
from routing.relay import StreamRelay
from routing.reply import Reply, Request
from routing.sse import DIALECTS, Scanner

if TYPE_CHECKING:
    from routing.app import Router

logger = logging.getLogger(__name__)

JSON_TYPE = (b"content-type", b"application/json")
STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
NOT_PASSED_BACK = frozenset(
    b"connection keep-alive transfer-encoding te trailer upgrade proxy-authenticate proxy-authorization content-length"
    b" server date x-request-id cache-control x-accel-buffering".split()
)
LEASE_SHARE = 0.9
"""A hand-off is used in the first nine tenths of its lease: the rest is for the decode server to ask for it."""


class Exchange:
    """One request. Its task is cancelled when the client leaves; whatever it holds is given back then."""

    def __init__(self, router: "Router", request: Request, reply: Reply) -> None:
        self._router = router
        self._request = request
        self._reply = reply
        self._table = router.table
        self._layouts = router.layouts
        self._zero = time.monotonic()
        self._left = False
        self._committed = False
        """Bytes of an answer went out: nothing can be tried elsewhere any more."""
        self._task: asyncio.Task[None] | None = None
        self._comments: asyncio.TimerHandle | None = None
        self._decode_body: DecodeBody | None = None
        self._handoff: Taken | None = None
        self._choice: Choice | None = None
        request.path = request.path.rstrip("/")
        self.record = Record(request_id(request), "", request.path, False, time.time())

    def begin(self) -> "asyncio.Task[None]":
        self._reply.on_disconnect = self.leave
        self._task = asyncio.get_running_loop().create_task(self.run())
        return self._task

    def leave(self) -> None:
        """The client is gone: both legs stop. Nothing happens when the exchange is over."""
        if self._task is not None and not self._task.done():
            self._left = True
            self._task.cancel()

    def stop(self) -> "asyncio.Task[None] | None":
        """The router goes: the client sees its connection break."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def run(self) -> None:
        self._router.enter(self)
        try:
            await self._serve()
        except Refusal as refusal:
            self._refuse(refusal)
        except asyncio.CancelledError:
            self._cancelled()
        except Exception:
            logger.exception("request %s broke the router", self.record.request_id)
            self._refuse(Refusal(500, "The router failed on this request; its log says why.", kind="InternalError"))
        finally:
            self._finish()

    # Serving

    async def _serve(self) -> None:
        kind = kind_of(self._request.path)
        if kind is None:
            raise Refusal(404, f"{self._request.path} is not served here. See /v1/models.", kind="NotFoundError")
        if self._request.too_large:
            limit = self._router.max_body_bytes
            raise Refusal(413, f"The body is longer than the limit of {limit} bytes. Send a shorter one, or raise it.")
        if self._request.method != method_of(self._request.path):
            raise Refusal(405, f"Use {method_of(self._request.path)} for {self._request.path}.")
        if kind == "models":
            self._send_json(200, await self._router.models(self._request))
            return
        ask = read_ask(self._request, self._table, splits=kind == "split")
        self.record.deployment = ask.deployment.name
        self.record.streamed = ask.streamed
        self.record.estimated_prompt_tokens = ask.wish.prompt_tokens
        await self._serve_ask(ask)

    async def _serve_ask(self, ask: Ask) -> None:
        layout = self._layouts[ask.deployment.name]
        dialect = DIALECTS.get(self._request.path)
        self._decode_body = DecodeBody(
            self._request.body, ask.body, touched=ask.touched, counts_by_usage=dialect in ("chat", "completions")
        )
        if ask.streamed and ask.deployment.policy.comment_every_s is not None:
            self._comment_later(ask.deployment.policy.comment_every_s)
        try:
            async with asyncio.timeout(ask.deployment.policy.timeouts.total_s):
                await self._attempts(ask, layout)
        except TimeoutError as error:
            limit_s = ask.deployment.policy.timeouts.total_s
            self._broken(TimedOut(f"The answer was not complete within the total limit of {limit_s:g} s"), error)

    async def _attempts(self, ask: Ask, layout: Layout) -> None:
        avoid: set[str] = set()
        failed: LegError | None = None
        prefill_failed = ""
        for attempt in range(1, layout.policy.retries + 2):
            self.record.attempts = attempt
            try:
                choice = await self._choose(ask, layout, frozenset(avoid), prefill_failed)
            except Refusal as refusal:
                raise refusal if failed is None else _last_word(failed) from failed
            try:
                await self._attempt(ask, choice)
                return
            except LegError as error:
                self._note_failure(error)
                if self._is_final(error):
                    self._broken(error)
                    return
                failed = error
                avoid |= self._to_avoid(error, choice)
                if self._is_on_prefill(choice):
                    prefill_failed = f"prefill {_short(error)}"
        assert failed is not None
        self._broken(failed)

    async def _choose(self, ask: Ask, layout: Layout, avoid: frozenset[str], prefill_failed: str) -> Choice:
        chooser = Chooser(layout, ask.wish, time.monotonic(), avoid)
        try:
            choice = chooser.choose()
        except Refusal:
            again = self._again_without_handoff(ask, layout)
            if again is None and avoid:
                raise
            choice = again or await self._router.wait_for(ask)
        if prefill_failed and choice.route == "fallback":
            choice = Choice("fallback", f"fallback: {prefill_failed}", choice.decode)
        self._choice = choice
        record = self.record
        record.route, record.reason = choice.route, choice.reason
        record.prefill_server = choice.prefill.id if choice.prefill else None
        record.decode_server = choice.decode.id
        record.chosen_ms = self._now_ms()
        record.prefill_sent_ms = record.prefill_answered_ms = record.decode_sent_ms = record.decode_opened_ms = None
        return choice

    def _again_without_handoff(self, ask: Ask, layout: Layout) -> Choice | None:
        """The only decode server failed with a hand-off: without one it may still do the whole request, once."""
        last = self._choice
        if last is None or last.prefill is None or self.record.prefill_answered_ms is None:
            return None
        if layout.policy.when_no_pair == "refuse":
            return None
        return Choice("fallback", "fallback: decode failed with the hand-off", last.decode)

    def _is_on_prefill(self, choice: Choice) -> bool:
        return choice.prefill is not None and self.record.prefill_answered_ms is None

    def _to_avoid(self, error: LegError, choice: Choice) -> set[str]:
        if isinstance(error, HandoffTooOld):
            return set()
        if choice.prefill is not None and self._is_on_prefill(choice):
            return {choice.prefill.id}
        return {choice.decode.id}

    def _is_final(self, error: LegError) -> bool:
        return self._committed or (isinstance(error, Answered) and error.is_clients)

    def _note_failure(self, error: LegError) -> None:
        self.record.error = str(error)
        if self._choice is not None:
            self._router.count_failure(self._choice, error, on_prefill=self._is_on_prefill(self._choice))

    async def _attempt(self, ask: Ask, choice: Choice) -> None:
        try:
            handoff = await self._prefill(ask, choice)
            self._remember(ask, choice)
            await self._decode(ask, choice, handoff)
        finally:
            self._end_handoff()

    def _remember(self, ask: Ask, choice: Choice) -> None:
        layout, server = self._layouts[ask.deployment.name], choice.prefill or choice.decode
        if ask.wish.session is not None:
            layout.sessions.put(ask.wish.session, server.id)
        for _, key in ask.wish.prefix:
            layout.prefixes.put(key, server.id)

    # The prefill leg

    async def _prefill(self, ask: Ask, choice: Choice) -> dict[str, Any] | None:
        if choice.prefill is None:
            return None
        body = prefill_body(self._request.path, ask.body)
        timeouts = ask.deployment.policy.timeouts
        with Leg(choice.prefill, timeouts, prompt_tokens=ask.wish.prompt_tokens) as leg:
            await leg.open("POST", self._request.path, self._leg_headers("p"), body, self._mark_prefill_sent)
            answer = await leg.read()
        self.record.prefill_answered_ms = self._now_ms()
        return self._read_handoff(choice, answer)

    def _mark_prefill_sent(self) -> None:
        self.record.prefill_sent_ms = self._now_ms()

    def _read_handoff(self, choice: Choice, answer: bytes) -> dict[str, Any] | None:
        assert choice.prefill is not None
        try:
            payload = orjson.loads(answer)
            handoff = payload.get("kv_transfer_params")
        except (ValueError, AttributeError) as error:
            raise BadAnswer(f"{choice.prefill.name} did not answer with a JSON object") from error
        usage = payload.get("usage") or {}
        self.record.prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
        self.record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if not handoff or not handoff.get("remote_block_ids"):
            self.record.route = "fallback"
            self.record.reason = f"fallback: {choice.prefill.name} handed nothing over"
            return None
        self._handoff = take_handoff(choice.prefill.load)
        return dict(handoff)

    # The decode leg

    async def _decode(self, ask: Ask, choice: Choice, handoff: dict[str, Any] | None) -> None:
        assert self._decode_body is not None
        body = self._decode_body.with_handoff(handoff)
        timeouts = ask.deployment.policy.timeouts
        target = self._request.path + ("?" + self._request.query.decode("latin-1") if self._request.query else "")
        with Leg(choice.decode, timeouts, streams=1) as leg:
            lease = self._check_lease(choice) if handoff is not None else self._mark_decode_sent
            connection = await leg.open("POST", target, self._leg_headers("d"), body, lease)
            self.record.decode_opened_ms = self._now_ms()
            head = leg.head
            content_type = head.get(b"content-type") or b""
            dialect = DIALECTS.get(self._request.path)
            if dialect is None or not content_type.startswith(b"text/event-stream") or head.get(b"content-encoding"):
                await self._relay_whole(leg)
                return
            scanner = Scanner(dialect, drop_usage=not self._decode_body.asks_usage)
            relay = StreamRelay(
                connection,
                scanner,
                self._reply,
                self.record,
                zero=self._zero,
                start=lambda: self._commit(head.status, head.headers),
                on_first_token=self._on_first_token,
                idle_s=timeouts.idle_s,
            )
            try:
                await relay.ended
            finally:
                relay.stop()
                if self.record.first_token_ms is not None:
                    leg.gave_tokens()
                self._take_usage(scanner.usage)
        self._reply.finish()
        self.record.outcome = "ok"

    def _check_lease(self, choice: Choice) -> Any:
        def check() -> None:
            self._mark_decode_sent()
            prefill, answered = choice.prefill, self.record.prefill_answered_ms
            assert prefill is not None
            assert answered is not None
            age_s = (self._now_ms() - answered) / 1e3
            if age_s > prefill.server.kv_lease_s * LEASE_SHARE:
                raise HandoffTooOld(f"the hand-off of {prefill.name} was {age_s:.1f} s old, too near its lease")

        return check

    def _mark_decode_sent(self) -> None:
        self.record.decode_sent_ms = self._now_ms()

    async def _relay_whole(self, leg: Leg) -> None:
        """An answer that is not a stream goes out when it is complete, so that until then it can be tried again."""
        head = leg.head
        body = await leg.read()
        if self._request.path in DIALECTS:
            self._take_usage_of(body)
        headers = [(b"content-length", b"%d" % len(body))]
        self._start(head.status, head.headers, extra=headers)
        self._reply.write(body)
        self._reply.finish()
        self.record.outcome = "ok"

    def _take_usage_of(self, body: bytes) -> None:
        try:
            usage = orjson.loads(body).get("usage")
        except (ValueError, AttributeError):
            return
        if isinstance(usage, dict):
            names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
            self._take_usage({names.get(str(name), str(name)): value for name, value in usage.items()})

    def _take_usage(self, usage: dict[str, Any] | None) -> None:
        record = self.record
        if usage is None:
            if record.first_token_ms is not None and record.completion_tokens is None:
                record.completion_tokens = len(record.gaps_ms) + 1
            return
        record.completion_tokens = usage.get("completion_tokens", record.completion_tokens)
        record.prompt_tokens = usage.get("prompt_tokens") or record.prompt_tokens
        if record.cached_tokens is None and record.prefill_server is None:
            record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    # Answering

    def _leg_headers(self, leg: str) -> Headers:
        leg_id = f"{self.record.request_id}-{leg}{self.record.attempts}"
        return [*headers_for_servers(self._request), (b"x-request-id", leg_id.encode())]

    def _our_headers(self) -> Headers:
        headers = [(b"x-request-id", self.record.request_id.encode())]
        if self.record.route is not None and self._choice is not None:
            headers += [
                (b"x-switchyard-route", self.record.route.encode()),
                (b"x-switchyard-reason", _header_text(self.record.reason)),
                (b"x-switchyard-decode", _header_text(self._choice.decode.name)),
            ]
            if self._choice.prefill is not None:
                headers.append((b"x-switchyard-prefill", _header_text(self._choice.prefill.name)))
        return headers

    def _start(self, status: int, headers: Headers, *, extra: Headers | None = None, streamed: bool = False) -> None:
        self.record.status = status
        if self._reply.started:
            return
        passed = [(name, value) for name, value in headers if name not in NOT_PASSED_BACK]
        self._reply.start(
            status, [*passed, *self._our_headers(), *(extra or []), *(STREAM_HEADERS if streamed else [])]
        )

    def _commit(self, status: int, headers: Headers) -> None:
        self._committed = True
        self._start(status, headers, streamed=True)

    def _send_json(self, status: int, body: bytes, extra: Headers | None = None) -> None:
        self._start(status, [JSON_TYPE, *(extra or [])], extra=[(b"content-length", b"%d" % len(body))])
        self._reply.write(body)
        self._reply.finish()
        self.record.outcome = "ok" if status < 400 else "refused" if status < 500 else "failed"

    def _refuse(self, refusal: Refusal) -> None:
        self.record.error = refusal.message
        if self._reply.started:
            self._end_in_band(refusal)
            return
        extra: Headers = []
        if refusal.retry_after_s is not None:
            extra.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after_s))))
        self._send_json(refusal.status, refusal.body(), extra)

    def _broken(self, error: LegError, cause: BaseException | None = None) -> None:
        """The last word on a request that no server completed."""
        self.record.error = str(error)
        if isinstance(error, Answered) and not self._reply.started:
            passed = [(name, value) for name, value in error.headers if name not in NOT_PASSED_BACK]
            self._start(error.status, passed, extra=[(b"content-length", b"%d" % len(error.body))])
            self._reply.write(error.body)
            self._reply.finish()
            self.record.outcome = "refused" if error.is_clients else "failed"
            return
        raise error.refusal() from cause

    def _end_in_band(self, refusal: Refusal) -> None:
        self.record.outcome = "failed"
        dialect = DIALECTS.get(self._request.path)
        if dialect is None or not self.record.streamed:
            self._reply.abort()
            return
        self._reply.write(error_event(refusal.status, refusal.message, refusal.kind, dialect))
        self._reply.finish()

    def _comment_later(self, every_s: float) -> None:
        self._comments = asyncio.get_running_loop().call_later(every_s, self._comment, every_s)

    def _comment(self, every_s: float) -> None:
        if self.record.first_token_ms is not None:
            return
        if not self._reply.started:
            self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8")], streamed=True)
        self._reply.write(b": waiting\n\n")
        self._comment_later(every_s)

    # Ends

    def _on_first_token(self) -> None:
        self._end_handoff()
        self._router.first_token(self.record)

    def _end_handoff(self) -> None:
        if self._handoff is not None:
            self._handoff.give_back()
            self._handoff = None

    def _cancelled(self) -> None:
        self.record.outcome = "cancelled"
        self.record.error = "the client left" if self._left else "the router was stopped"
        if not self._left:
            self._reply.abort()

    def _finish(self) -> None:
        self._reply.on_disconnect = None
        if self._comments is not None:
            self._comments.cancel()
        self.record.finished_ms = self._now_ms()
        self._router.leave(self)

    def _now_ms(self) -> float:
        return (time.monotonic() - self._zero) * 1e3


class HandoffTooOld(LegError):
    """It is prefilled again: read after its lease, a hand-off gives wrong text."""

    blames_server = False


def _last_word(error: LegError) -> Refusal:
    return error.refusal()


def _short(error: LegError) -> str:
    if isinstance(error, Answered):
        return str(error.status)
    if isinstance(error, TimedOut):
        return "timed out"
    return "connection lost" if isinstance(error, ConnectionLost) else "unreachable"


def _header_text(text: str) -> bytes:
    return "".join(c if " " <= c <= "~" else "?" for c in text).encode()
