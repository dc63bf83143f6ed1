"""The HTTP routes of a vLLM server, and those under /simulator that tests use."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import orjson

from . import bodies, messages, responses, tokens
from .arguments import Arguments
from .bodies import ServerFacts, Wanted
from .contracts import EngineLike
from .cors import is_preflight
from .exchange import DEAD, Exchange
from .faults import BadFaults, Faults
from .faulty import FaultyReply, answer_from_script, answer_probe, needs_faulty_reply
from .load_report import is_asked, load_headers
from .loglines import API, VERSION, Log
from .metrics import HttpMetrics
from .pages import Handler, Pages
from .recorder import Record, Recorder
from .refusals import Invalid, Refused, error_json
from .shapes import ChatShape, CompletionShape, Shape
from .wire import Connection, HttpRequest, Reply

DRAINING = error_json("cannot schedule new futures after shutdown", "InternalServerError", None, 500)
LOAD_TOLD_BY = (ChatShape, CompletionShape)
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""Where an API key is asked for."""
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


@dataclass
class State:
    """Where the server stands; `process.Lifecycle` changes it."""

    draining: bool = False
    exchanges: set[Exchange] = field(default_factory=set)
    in_flight: int = 0


class App:
    def __init__(
        self,
        arguments: Arguments,
        facts: ServerFacts,
        engine: EngineLike,
        log: Log,
        *,
        control: bool,
        dev_mode: bool,
        keep_alive_s: float,
        die: Callable[[int], None],
    ) -> None:
        self.state = State()
        self.faults = Faults()
        self._arguments = arguments
        self._facts = facts
        self._engine = engine
        self._log = log
        self._control = control
        self._keep_alive_s = keep_alive_s
        self._die = die
        self._metrics = HttpMetrics()
        self._pages = Pages(arguments, facts)
        self._recorder = Recorder()
        self._open: dict[Reply, tuple[Record | None, Exchange | None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._generating: set[str] = set()
        self._routes = self._make_routes(dev_mode)
        self._changed = asyncio.Event()

    # --- routes

    def _make_routes(self, dev_mode: bool) -> dict[str, dict[str, Handler]]:
        routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics_page},
            "/v1/models": {"GET": self._models},
            "/openapi.json": {"GET": self._openapi},
        }
        routes |= self._pages.routes()
        if not self._arguments.pooling:
            routes |= self._generating_routes()
        if dev_mode:
            routes |= self._dev_routes()
        if self._control:
            routes["/simulator/faults"] = {
                "GET": self._show_faults,
                "POST": self._set_faults,
                "DELETE": self._clear_faults,
            }
            routes["/simulator/requests"] = {"GET": self._show_requests, "DELETE": self._forget_requests}
        return routes

    def _generating_routes(self) -> dict[str, dict[str, Handler]]:
        routes: dict[str, dict[str, Handler]] = {
            "/v1/completions": {"POST": self._generate(bodies.completion, CompletionShape, "cmpl-")},
            "/v1/chat/completions": {"POST": self._generate(bodies.chat, ChatShape, "chatcmpl-")},
            "/v1/responses": {"POST": self._generate(responses.read, responses.ResponsesShape, "resp_")},
            "/v1/messages": {"POST": self._generate(messages.read, messages.MessagesShape, "chatcmpl-")},
            "/invocations": {"POST": self._invoke},
        }
        if self._arguments.scale_out:
            prefix = "generate-tokens-"
            routes["/inference/v1/generate"] = {"POST": self._generate(tokens.read, tokens.TokensShape, prefix)}
        self._generating = set(routes)
        return routes

    def _dev_routes(self) -> dict[str, dict[str, Handler]]:
        paused = {"is_paused": False}

        def pause(value: bool) -> Handler:
            def handler(_: HttpRequest, reply: Reply) -> None:
                paused["is_paused"] = value
                self._engine.pause(value)
                reply.json(200, {"status": "paused" if value else "resumed"})

            return handler

        def reset(_: HttpRequest, reply: Reply) -> None:
            self._engine.reset_prefix_cache()
            reply.full(200, b"", "")

        return {
            "/pause": {"POST": pause(True)},
            "/resume": {"POST": pause(False)},
            "/is_paused": {"GET": lambda _, reply: reply.json(200, paused)},
            "/is_sleeping": {"GET": lambda _, reply: reply.json(200, {"is_sleeping": False})},
            "/reset_prefix_cache": {"POST": reset},
        }

    def route_lines(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (path, ", ".join(methods)) for path, methods in self._routes.items() if not path.startswith("/simulator")
        )

    # --- what a connection asks (wire.Application)

    @property
    def keep_alive_s(self) -> float:
        faults = self.faults
        return self._keep_alive_s if faults.close_idle_s is None else faults.close_idle_s

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)

    async def wait_for_change(self, at_most_s: float) -> None:
        """Until a request has ended, or so long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()

    def close_idle_connections(self) -> None:
        for connection in list(self._connections):
            if connection.is_idle:
                connection.close()

    def stops_reading(self, request: HttpRequest) -> bool:
        return self.faults.stop_reading and self._is_generating(request)

    def reply_for(self, connection: Connection, request: HttpRequest) -> Reply:
        faults = self._take_faults() if self._is_generating(request) else Faults()
        reply = FaultyReply(connection, request, faults) if needs_faulty_reply(faults) else Reply(connection, request)
        reply.faults = faults
        reply.cors = self._arguments.cors.of_answer(request.headers.get("origin"))
        record = None
        if self._control and not request.path.startswith("/simulator"):
            record = self._recorder.add(request)
        self._open[reply] = (record, None)
        self.state.in_flight += 1
        if self._arguments.request_id_headers:
            request_id = request.headers.get("x-request-id") or uuid4().hex
            reply.extra_headers.append(("x-request-id", request_id))
        return reply

    def answered(self, reply: Reply) -> None:
        record, exchange = self._open.pop(reply, (None, None))
        if record is not None:
            record.status = reply.status
        self._gone(exchange)
        request = reply.request
        if self._arguments.access_log and request.path not in self._arguments.quiet_paths:
            self._log.access(request.peer, request.method, request.path, reply.status)
        self._metrics.record(request.path, request.method, reply.status, time.monotonic() - request.received)

    def abandoned(self, reply: Reply) -> None:
        record, exchange = self._open.pop(reply, (None, None))
        if record is not None:
            record.disconnected = True
            record.disconnected_at = time.time()
        self._gone(exchange)

    def _gone(self, exchange: Exchange | None) -> None:
        self.state.in_flight -= 1
        self._changed.set()
        if exchange is not None:
            self.state.exchanges.discard(exchange)

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """The edge of a request: what its handler did not foresee becomes a 500, as in vLLM."""
        try:
            self._dispatch(request, reply)
        except Exception as error:
            self._log.error(API, "exception_handler.py:45", traceback.format_exc())
            if not reply.status:
                reply.json(500, error_json(str(error), "InternalServerError", None, 500))

    def _dispatch(self, request: HttpRequest, reply: Reply) -> None:
        if not self._is_authorized(request):
            reply.cors = []  # Keys are looked at before.
            reply.json(401, {"error": "Unauthorized"})
            return
        if is_preflight(request.method, request.headers):
            status, words, reply.cors = self._arguments.cors.preflight(request.headers)
            reply.full(status, words.encode(), "text/plain; charset=utf-8")
            return
        path = self._local_path(request)
        methods = self._find(path)
        if methods is None and path.endswith("/") and self._find(path[:-1]):
            location = f"http://{request.headers.get('host', '')}{request.path[:-1]}"
            reply.full(307, b"", "", [("location", location)])
        elif methods is None:
            reply.json(404, {"detail": "Not Found"})
        elif request.method not in methods:
            reply.full(405, b'{"detail":"Method Not Allowed"}', headers=[("allow", ", ".join(methods))])
        else:
            methods[request.method](request, reply)

    def _find(self, path: str) -> dict[str, Handler] | None:
        found = self._routes.get(path)
        if found is None and path.startswith("/v1/responses/"):
            tail = "/cancel" if path.endswith("/cancel") else ""
            return self._routes.get("/v1/responses/{response_id}" + tail)
        return None if "{" in path else found

    def _local_path(self, request: HttpRequest) -> str:
        root = self._arguments.root_path
        return request.path[len(root) :] if root and request.path.startswith(root + "/") else request.path

    def _is_generating(self, request: HttpRequest) -> bool:
        return request.method == "POST" and self._local_path(request) in self._generating

    def _is_authorized(self, request: HttpRequest) -> bool:
        if request.method == "OPTIONS":
            return True
        path = self._local_path(request)
        if self.faults.api_key is not None and not path.startswith("/simulator"):
            return request.headers.get("authorization") == f"Bearer {self.faults.api_key}"
        keys = self._arguments.api_keys
        if not keys or not path.startswith(GUARDED):
            return True
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and key in keys

    # --- faults

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        self._engine.set_faults(faults)
        if faults.die is not None and not faults.die.get("after_requests"):
            self._die(int(faults.die.get("exit_code", 1)))

    def _take_faults(self) -> Faults:
        """The faults of one more request that generates."""
        faults = self.faults
        if faults.die is not None:
            left = int(faults.die.get("after_requests", 0)) - 1
            if left < 0:
                self._die(int(faults.die.get("exit_code", 1)))
            self.faults = faults.merged({"die": faults.die | {"after_requests": max(left, 0)}})
        if faults.times is not None:
            left = faults.times - 1
            self.set_faults(self.faults.without_request_faults() if left <= 0 else self.faults.merged({"times": left}))
        return faults

    def _show_faults(self, _: HttpRequest, reply: Reply) -> None:
        reply.json(200, self.faults.as_json())

    def _set_faults(self, request: HttpRequest, reply: Reply) -> None:
        try:
            changes = orjson.loads(request.body or b"{}")
            if not isinstance(changes, dict):
                raise BadFaults("expected an object")
            faults = self.faults.merged(changes)
        except (ValueError, BadFaults) as error:
            reply.json(400, {"error": str(error)})
            return
        reply.json(200, faults.as_json())
        self.set_faults(faults)

    def _clear_faults(self, _: HttpRequest, reply: Reply) -> None:
        self.set_faults(Faults())
        reply.json(200, {})

    def _show_requests(self, _: HttpRequest, reply: Reply) -> None:
        reply.json(200, self._recorder.as_json())

    def _forget_requests(self, _: HttpRequest, reply: Reply) -> None:
        self._recorder.clear()
        reply.json(200, [])

    # --- probes

    def _health(self, _: HttpRequest, reply: Reply) -> None:
        def answer() -> None:
            if self.state.draining:
                reply.connection.reset()
                return
            reply.full(503 if self._engine.dead else 200, b"", "")

        answer_probe(self.faults.health, reply, answer)

    def _models(self, _: HttpRequest, reply: Reply) -> None:
        answer_probe(self.faults.models, reply, lambda: reply.json(200, self._pages.model_list()))

    def _metrics_page(self, _: HttpRequest, reply: Reply) -> None:
        answer_probe(self.faults.metrics, reply, lambda: self._spawn(self._write_metrics(reply)))

    async def _write_metrics(self, reply: Reply) -> None:
        text = self._metrics.text() + await self._engine.metrics_text()
        reply.full(200, text.encode(), METRICS_TYPE)

    def _load(self, _: HttpRequest, reply: Reply) -> None:
        load = len(self.state.exchanges) if self._arguments.server_load else 0
        reply.json(200, {"server_load": load})

    def _openapi(self, _: HttpRequest, reply: Reply) -> None:
        paths: dict[str, Any] = {
            path: {method.lower(): {} for method in methods.split(", ")} for path, methods in self.route_lines()
        }
        reply.json(200, {"openapi": "3.1.0", "info": {"title": "vLLM API", "version": VERSION}, "paths": paths})

    # --- generating

    def _generate(
        self, read: Callable[[dict[str, Any], ServerFacts], Wanted], shape: type[Shape], prefix: str
    ) -> Handler:
        def handler(request: HttpRequest, reply: Reply) -> None:
            body: dict[str, Any] = {}
            try:
                if answer_from_script(reply):
                    return
                body = bodies.parse_json(request)
                self._refuse_fields(body, reply.faults)
                if self.state.draining or self._engine.dead:
                    reply.json(500, DEAD if self._engine.dead else DRAINING)
                    return
                wanted = read(body, self._facts)
            except Refused as refusal:
                self._refuse(body, reply, refusal, anthropic=shape is messages.MessagesShape)
                return
            answer_id = shape.id_of(prefix, request.headers.get("x-request-id"), body.get("request_id"))
            details = self._arguments.prompt_tokens_details
            look = shape(answer_id, wanted, reply.faults, details)
            look.block_size = self._arguments.block_size
            if is_asked(request) and shape in LOAD_TOLD_BY and not wanted.stream:
                self._spawn(self._begin_with_load(request, reply, wanted, look))
            else:
                self._begin(reply, wanted, look)

        return handler

    async def _begin_with_load(self, request: HttpRequest, reply: Reply, wanted: Wanted, shape: Shape) -> None:
        reply.told_of_load = load_headers(request, await self._engine.metrics_text())
        if not reply.done:
            self._begin(reply, wanted, shape)

    def _begin(self, reply: Reply, wanted: Wanted, shape: Shape) -> None:
        exchange = Exchange(self._engine, reply, wanted, shape, reply.faults)
        record, _ = self._open.get(reply, (None, None))
        self._open[reply] = (record, exchange)
        self.state.exchanges.add(exchange)
        exchange.begin()

    def _invoke(self, request: HttpRequest, reply: Reply) -> None:
        """/invocations: whatever the body looks like. Its model is the adapter that a header names, else the first."""
        path = "/v1/chat/completions" if b'"messages"' in request.body else "/v1/completions"
        with contextlib.suppress(ValueError, TypeError):
            adapter = request.headers.get("x-amzn-sagemaker-adapter-identifier")
            request.body = orjson.dumps({**orjson.loads(request.body), "model": adapter})
        self._routes[path]["POST"](request, reply)

    def _refuse_fields(self, body: dict[str, Any], faults: Faults) -> None:
        for name in faults.refuse_fields:
            if name in body:
                raise Refused(f"{name} is not supported.", param=name)

    def _refuse(self, body: dict[str, Any], reply: Reply, refusal: Refused, anthropic: bool) -> None:
        kv = body.get("kv_transfer_params")
        if isinstance(kv, dict) and kv.get("do_remote_prefill"):
            self._engine.release(kv)
        told = {"type": "error", "error": {"type": refusal.kind, "message": str(refusal)}}
        reply.json(refusal.code, told if anthropic and not isinstance(refusal, Invalid) else refusal.as_json())

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
