"""One try of a request on the servers chosen for it: the prefill leg, the hand-off, and the leg that answers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from routing.answer import Answer
from routing.ask import Ask
from routing.backend import Backend
from routing.bodies import DecodeBody, NotJson, answers_of, forces_a_tool, pieces, prefill_body
from routing.choose import Choice
from routing.clock import Clock
from routing.errors import Answered, BadAnswer, Headers, LegError, StreamError, raise_if
from routing.handoff import Handoff
from routing.http1 import Head
from routing.large import read_object
from routing.leg import Leg
from routing.limits import refuse_in_own_words, tells_of_our_token
from routing.loads import take
from routing.paths import api_of, is_for_engine
from routing.record import Record
from routing.relay import StreamRelay
from routing.sse import DIALECTS, STREAMS, Dialect, Scanner
from routing.usage import cached_tokens, read_usage, with_counts_of_prefill

if TYPE_CHECKING:
    from routing.app import Router

ASKS_FOR_LOAD: Final = b"endpoint-load-metrics-format"
NOT_READ: Final = b"json_invalid"
NOT_HELD: Final = b"but data is not provided"
"""What an engine says of a picture that it knows by no such name."""


class Job:
    """What all attempts of one request share."""

    __slots__ = ("answer", "ask", "client_left", "clock", "decode_body", "record", "watch")

    def __init__(
        self,
        ask: Ask,
        answer: Answer,
        record: Record,
        clock: Clock,
        decode_body: DecodeBody,
        watch: "Router",
        client_left: Callable[[], bool],
    ) -> None:
        """`watch` hears what happens."""
        self.ask = ask
        self.answer = answer
        self.record = record
        self.clock = clock
        self.decode_body = decode_body
        self.watch = watch
        self.client_left = client_left


class Attempt:
    """`run` returns when the client has its answer, or raises `LegError`. `handoff` is what is left to look after."""

    __slots__ = (
        "_api",
        "_choice",
        "_job",
        "_path",
        "_prefill_leg",
        "_prefill_usage",
        "_record",
        "_refusal",
        "_timeouts",
        "handoff",
        "on_prefill",
    )

    def __init__(self, job: Job, choice: Choice) -> None:
        self._job = job
        self._choice = choice
        self._record = job.record
        self._path = job.ask.request.path
        self._api = api_of(self._path, job.ask.body)
        self._timeouts = job.ask.deployment.policy.timeouts
        self.handoff: Handoff | None = None
        self.on_prefill = choice.prefill is not None
        """It is the prefill server that this attempt is with."""
        self._prefill_leg: Leg | None = None
        self._prefill_usage: dict[str, Any] | None = None
        self._refusal: Answered | None = None
        """The prefill server's, which was asked for another answer than the client wants: what the client is to hear of
        it only a server that gets the client's own request can tell."""

    async def run(self) -> None:
        if self._choice.prefill is not None:
            # Counted on the decode server from now on: choices made meanwhile see it, and it keeps a place there.
            place = take(self._choice.decode.load, streams=1)
            try:
                self.handoff = await self._prefill()
            finally:
                place.give_back()
            self.on_prefill = False
        if self._job.client_left():
            raise asyncio.CancelledError
        if self._refusal is None:
            await self._decode()
        else:
            await self._hear_of(self._refusal.status)

    async def _hear_of(self, refused: int) -> None:
        """The decode server says it in its own way, or does it all the same. The request is at fault: no server is
        blamed, and none is asked once more."""
        try:
            await self._decode()
        except StreamError as error:
            error.put_down_to_client(refused)
            raise
        except LegError as error:
            if isinstance(error, Answered) and error.is_clients:
                raise
            self.on_prefill = True
            raise self._forget_refusal() from error

    def _forget_refusal(self) -> Answered:
        """To raise it: the frames that it passes refer to this attempt."""
        refusal, self._refusal = self._refusal, None
        assert refusal is not None
        return refusal

    @property
    def has_handoff_coming(self) -> bool:
        """The prompt is computed and its cache kept: reading the answer to its end is what lets us free it."""
        return self.on_prefill and self._prefill_leg is not None and self._prefill_leg.has_begun_to_answer

    def _leg_headers(self, leg: str) -> Headers:
        """The first server that is to answer gets the request's own id, which it tells its client in that of the
        answer. Every other leg has one that goes on from it, so that logs of servers tell them apart."""
        record = self._record
        leg_id = (
            record.request_id if leg == "d" and record.attempts == 1 else f"{record.request_id}-{leg}{record.attempts}"
        )
        return [*self._job.ask.headers, (b"x-request-id", leg_id.encode())]

    def _prefill_headers(self) -> Headers:
        """Without what asks for a header of an answer that no client sees."""
        return [header for header in self._leg_headers("p") if header[0] != ASKS_FOR_LOAD]

    # The prefill leg

    async def _prefill(self) -> Handoff | None:
        prefill, ask = self._choice.prefill, self._job.ask
        assert prefill is not None
        body = prefill_body(self._path, ask.body)
        try:
            with Leg(prefill, self._timeouts, prompt_tokens=ask.wish.prompt_tokens) as leg:
                self._prefill_leg = leg
                await leg.open("POST", self._path, self._prefill_headers(), body, self._mark_prefill_sent)
                raw = await leg.read()
                self._record.prefill_answered_ms = self._job.clock.now_ms()
                answer = _object(raw)
                if answer is None:
                    raise BadAnswer(f"{prefill.name} did not answer with a JSON object")
            return self._read_prefill(answer)
        except Answered as refusal:
            self._refusal = refusal.with_traceback(None)  # It would refer to the frames that refer to it.
        raise_if(await self._not_to_do_without(prefill))
        return None

    async def _not_to_do_without(self, prefill: Backend) -> Answered | None:
        """What the prefill server refused, where that is the end of it. Raises it in other words, where those fit."""
        refusal, body = self._forget_refusal(), self._job.ask.body
        if why := _why_without(refusal, body):
            self._do_without(why)
            return None
        if tells_of_our_token(refusal):
            await refuse_in_own_words(prefill, self._job.ask, self._record.request_id)
        if not _is_told_otherwise(refusal, body):
            return refusal
        self._refusal = refusal
        self._do_without(f"refused it ({refusal.status})")
        return None

    def _mark_prefill_sent(self) -> None:
        self._record.prefill_sent_ms = self._job.clock.now_ms()

    def _read_prefill(self, answer: Mapping[str, Any]) -> Handoff | None:
        """A prefill server that kept nothing is no failure: the decode server does it all, and the record says so."""
        prefill, record = self._choice.prefill, self._record
        assert prefill is not None
        usage = read_usage(answer.get("usage"))
        if usage is not None:
            self._prefill_usage = answer["usage"]
            record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        params = answer.get("kv_transfer_params")
        if not isinstance(params, dict) or not _names_blocks(params.get("remote_block_ids")):
            self._do_without("handed nothing over")
            return None
        if record.cached_tokens is None:
            record.cached_tokens = cached_tokens(params.get("remote_prefill_cached_tokens"))
        return Handoff(prefill, params)

    def _do_without(self, why: str) -> None:
        """The decode server does it all."""
        assert self._choice.prefill is not None
        self._record.route = "fallback"
        self._record.reason = f"fallback: {self._choice.prefill.name} {why}"

    # The leg that answers

    async def _decode(self) -> None:
        ask, handoff = self._job.ask, self.handoff
        params = None if handoff is None else handoff.params
        query = ask.request.query.decode("latin-1")
        target = f"{self._path}?{query}" if query else self._path
        usage_forced = self._choice.decode.server.forces_usage
        with Leg(
            self._choice.decode,
            self._timeouts,
            streams=1,
            is_aside=self._refusal is not None,
            is_for_engine=is_for_engine(self._path),
            shows_tokens=self._job.ask.streamed,
        ) as leg:
            connection = await leg.open(
                ask.request.method,
                target,
                self._leg_headers("d"),
                self._job.decode_body.sendable(params, usage_forced=usage_forced) if ask.request.body else None,
                self._sending,
                only_once=handoff is not None,
            )
            self._record.decode_opened_ms = self._job.clock.ms_at(connection.head_at)
            dialect = STREAMS.get(self._api)
            if dialect is not None and leg.is_event_stream:
                raise_if(await self._relay_stream(leg, dialect))
            else:
                await self._relay_whole(leg)
        if handoff is not None:
            handoff.fetched()

    def _sending(self) -> None:
        if self.handoff is not None:
            self.handoff.check_lease()
            self.handoff.sent = True
        self._record.decode_sent_ms = self._job.clock.now_ms()

    async def _relay_stream(self, leg: Leg, dialect: Dialect) -> LegError | None:
        """What is to be raised, of which the relay must know nothing then: it would refer to its own frame."""
        answers = answers_of(self._api, self._job.ask.body)
        drop_usage = self._job.decode_body.usage_is_ours(forced=leg.backend.server.forces_usage)
        scanner = Scanner(dialect, drop_usage=drop_usage, answers=answers)
        head, answer = leg.head, self._job.answer
        self._record.streamed = True  # A form says so itself, in a field that only the server reads.
        if self.handoff is not None:
            scanner.prefill_usage = self._prefill_usage
        relay = StreamRelay(
            leg,
            scanner,
            answer.reply,
            self._record,
            self._job.clock,
            begin=lambda: self._begin(head, scanner.response_id),
            first_token=self._first_token,
            complete=answer.end_stream,
            idle_s=self._timeouts.idle_s,
            # The pump takes the first end of a choice for that of the answer.
            pump=self._job.watch.pump if answers == 1 and self._api in DIALECTS else None,
        )
        try:
            error = await relay.ended
        except asyncio.CancelledError:
            relay.settle()
            # After the end marker only the last bytes of the transfer are missing: the client, who may leave at that
            # marker, has all of the answer, whatever cancels us.
            if not scanner.is_complete:
                raise
            answer.end_stream()
            error = None
        finally:
            relay.stop()
            self._take_usage(scanner.usage)
        if error is None:
            return None
        if isinstance(error, StreamError):
            error.headers = head.headers
        if answer.committed and not is_clients(error):
            leg.blame(error)
            self._job.watch.count_failure(self._choice, error, on_prefill=False)
            answer.fail(error)
            return None
        return error

    def _begin(self, head: Head, response_id: str | None) -> None:
        """Nothing is tried again from here: a stream may be long, and there may be thousands, so bodies are let go."""
        self._remember_response(response_id)  # Before the client can know it and ask for it.
        self._job.answer.begin_stream(head.status, head.headers)
        head.headers = []
        self._job.ask.forget_bodies()
        self._job.decode_body.forget()

    def _first_token(self) -> None:
        if self.handoff is not None:
            self.handoff.fetched()
            self.handoff.params = {}
        self._job.watch.first_token(self._record)

    async def _relay_whole(self, leg: Leg) -> None:
        """An answer that is not a stream goes out when it is complete: until then it can be tried elsewhere."""
        if self.handoff is not None:
            self.handoff.hold_until_lease()
        body = await leg.read()
        if self._api in DIALECTS:
            body = await self._read_whole(body)
        self._job.answer.whole(leg.head.status, leg.head.headers, body)

    async def _read_whole(self, body: bytes) -> bytes:
        try:
            answer = await read_object(body)
        except NotJson:
            return body
        self._take_usage(answer.get("usage"))
        self._remember_response(answer.get("id") if self._path == "/v1/responses" else None)
        usage = answer.get("usage")
        if self.handoff is None or self._prefill_usage is None or not isinstance(usage, dict):
            return body
        corrected = with_counts_of_prefill(usage, self._prefill_usage)
        return body if corrected is None else b"".join(pieces({**answer, "usage": corrected}))

    def _remember_response(self, response_id: object) -> None:
        """A stored response can be read, cancelled or followed up only where it was made."""
        if isinstance(response_id, str) and response_id:
            self._job.watch.responses.put(response_id, self._choice.decode.id)

    def _take_usage(self, raw: object) -> None:
        """The engine's own count; by chunks when it gave none."""
        record, usage = self._record, read_usage(raw)
        if usage is None:
            if record.first_token_ms is not None and record.completion_tokens is None:
                record.completion_tokens = len(record.gaps_ms) + 1
            return
        if usage.completion_tokens is not None:
            record.completion_tokens = usage.completion_tokens
        record.prompt_tokens = usage.prompt_tokens or record.prompt_tokens
        if self._choice.prefill is None:
            record.cached_tokens = usage.cached_tokens


def is_clients(error: LegError) -> bool:
    """Something that it sent was refused, though only in the stream: its hand-off was fetched by nobody."""
    return isinstance(error, StreamError) and error.is_clients


def _names_blocks(ids: object) -> bool:
    """A list of blocks per group of layers: anything else, or no block at all, ends a decode engine."""
    return isinstance(ids, list) and all(isinstance(group, list) for group in ids) and any(ids)


def _why_without(refusal: Answered, body: Mapping[str, Any]) -> str:
    """Why the decode server may do what the prefill server refused; empty where it would refuse it too."""
    if not refusal.is_clients:
        return ""
    # The client sent a picture's name alone, and only servers that saw the picture know it.
    if NOT_HELD in refusal.body:
        return "does not hold what a name stands for"
    # A forced call that is cut after one token is no JSON, and some versions then refuse their own answer.
    if refusal.status == 400 and forces_a_tool(body) and not tells_of_our_token(refusal):
        return "refused a forced tool cut short"
    return ""


def _is_told_otherwise(refusal: Answered, body: Mapping[str, Any]) -> bool:
    """Engines say most of it in the stream, where one is asked for. Of a body that is no JSON they name the place, and
    that is another in the prefill server's."""
    return refusal.status == 400 and (bool(body.get("stream")) or NOT_READ in refusal.body)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        answer = orjson.loads(raw)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
