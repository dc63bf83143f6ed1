"""The router alone: `python -m routing --prefill URL --decode URL --port N`. No database, no broker.

With `--workers N` it is N processes on one port. Circuits, the retry budget and idle connections are each worker's own;
limits, loads, sessions, prompts and stored responses are those of all.
"""

import argparse
import asyncio
import hashlib
import logging
import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args
from urllib.parse import urlsplit

import uvicorn

from routing import how_it_runs
from routing.app import Router
from routing.asgi import Message, Receive, Scope, Send
from routing.backend import Backend
from routing.cards import ask_cards
from routing.colleagues import Colleagues
from routing.errors import KeyRefused, LegError
from routing.listening import CannotListen, Port
from routing.summed import counts_of, pack, render
from routing.table import LEAST, Deployment, Policy, Role, Server, Table, Timeouts, WhenNoPair
from routing.tuning import tune_process
from routing.uvicorn_protocol import KEEP_ALIVE_S, protocol_for
from routing.workers import DEFAULT_STUCK_S, DEFAULT_WORKERS, Parent, Place, WorkerServer

logger = logging.getLogger(__name__)
RETRY_CARDS_S = 1.0
HEALTH = ("/healthz", "/health")
"""The second as an engine names it: clients made for engines ask there first."""
MIB = 2**20
PROGRAM = "python -m routing"
LEVELS = ("critical", "error", "warning", "info", "debug")
MOST_BODY_MIB = 2**20
BODY_HELP = "requests with a larger body than so many MiB are answered with 413; 64 unless given"
SHUTDOWN_HELP = "so many seconds running streams are given when it is asked to end; 30 unless given"
LEVEL_HELP = "what it tells of itself on standard error, info unless given; of single requests it tells nothing"
USAGE_HELP = "the servers were started with --enable-force-include-usage: each stream tells its usage to everybody"
MOST_WORKERS = 256
MOST_STUCK_S = 86_400


def main(argv: Sequence[str] | None = None, prog: str = PROGRAM) -> int:
    """The exit status. `prog`: what was typed to come here, for the help."""
    args = parse(argv, prog)
    logging.basicConfig(level=args.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    logger.info("The router runs %s.", how_it_runs())
    servers = servers_of(args)
    try:
        port = Port(args.host, args.port)
    except CannotListen as error:
        raise SystemExit(str(error)) from error
    logger.info("listening on %s%s", _url(args.host, port), f" with {args.workers} workers" if args.workers > 1 else "")
    if args.workers > 1:
        return serve_together(args, port, [server.id for server in servers])
    serve(args, port.sockets())
    return 0


def _url(host: str, port: Port) -> str:
    return f"http://[{host}]:{port.number}" if ":" in host else f"http://{host}:{port.number}"


def serve(args: argparse.Namespace, sockets: list[socket.socket], place: Place | None = None) -> None:
    """Returns, or ends with the signal, when it was asked to end. `place`: as one of several workers."""
    app = Alone(args, place)
    tune_process()
    config = uvicorn.Config(
        app,
        http=protocol_for(app.router),
        ws="none",
        # Its info is ten lines from each worker, without the address.
        log_level="warning" if args.log_level == "info" else args.log_level,
        access_log=False,
        lifespan="on",
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=args.shutdown_timeout,
    )
    server = uvicorn.Server(config) if place is None else WorkerServer(config, place)
    server.run(sockets=sockets)


def serve_together(args: argparse.Namespace, port: Port, names: list[str]) -> int:
    tune_process()
    limits = {"shutdown_s": args.shutdown_timeout, "stuck_s": args.stuck_timeout}
    return Parent(args.workers, names, port, lambda place: serve(args, place.sockets, place), **limits).run()


def parse(argv: Sequence[str] | None, prog: str = PROGRAM) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    for role in ("prefill", "decode", "plain"):
        parser.add_argument(
            f"--{role}", action="append", default=[], metavar="URL", help=f"a {role} server; repeatable"
        )
    host_help = "the address to listen on: 127.0.0.1 unless given; 0.0.0.0 stands for all that this machine has"
    parser.add_argument("--host", default="127.0.0.1", help=host_help)
    port_help = "8000 unless given; 0 takes a free one"
    parser.add_argument("--port", type=_whole(0, 65535), default=8000, metavar="N", help=port_help)
    parser.add_argument("--model", help="the name that clients send; asked of the servers when not given")
    parser.add_argument(
        "--workers",
        type=_whole(1, MOST_WORKERS),
        default=DEFAULT_WORKERS,
        metavar="N",
        help="processes that share the work; 2, or 1 where only one core is usable, unless given",
    )
    parser.add_argument("--api-key", action="append", default=[], help="a key that clients must send; repeatable")
    parser.add_argument("--server-api-key", help="the key that the servers ask for")
    parser.add_argument("--force-include-usage", action="store_true", help=USAGE_HELP)
    parser.add_argument("--policy", action="append", default=[], metavar="NAME=VALUE", help=_policy_help())
    parser.add_argument("--max-body-mib", type=_whole(1, MOST_BODY_MIB), default=64, metavar="N", help=BODY_HELP)
    parser.add_argument("--shutdown-timeout", type=_whole(0, MOST_STUCK_S), default=30, metavar="S", help=SHUTDOWN_HELP)
    parser.add_argument(
        "--stuck-timeout",
        type=_whole(2, MOST_STUCK_S),
        default=DEFAULT_STUCK_S,
        metavar="S",
        help="a worker process that stands still for so long is killed and started again; 30 unless given",
    )
    parser.add_argument("--log-level", type=str.lower, choices=LEVELS, default="info", help=LEVEL_HELP)
    args = parser.parse_args(argv)
    if not (args.prefill or args.decode or args.plain):
        parser.error("name at least one server: --prefill and --decode, or --plain")
    try:
        args.policy = policy_of(args.policy)
    except ValueError as error:
        parser.error(str(error))
    return args


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text}: a whole number from {least} to {most}")

    return read


def _policy_help() -> str:
    fields = [*Policy.__dataclass_fields__.values(), *Timeouts.__dataclass_fields__.values()]
    unless_given = [f"{field.name}={str(field.default).lower()}" for field in fields if field.name != "timeouts"]
    return "a routing setting, repeatable; unless given: " + ", ".join(unless_given)


def policy_of(settings: Sequence[str]) -> Policy:
    """Raises ValueError in words for a setting that does not exist or has a wrong value."""
    policy: dict[str, Any] = {}
    timeouts: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        kind = Timeouts if name in Timeouts.__dataclass_fields__ else Policy
        if not equals or name not in kind.__dataclass_fields__ or name == "timeouts":
            raise ValueError(f"{setting}: write NAME=VALUE with one of the names in --help")
        (timeouts if kind is Timeouts else policy)[name] = _value(name, text, str(kind.__dataclass_fields__[name].type))
    return Policy(**policy, timeouts=Timeouts(**timeouts))


def _value(name: str, text: str, kind: str) -> object:
    words = _words(name, kind)
    if text.lower() in words:
        return words[text.lower()]
    least = LEAST.get(name, 0.0)
    numeral = (
        f"a whole number from {least:g}" if "int" in kind else f"a number from {least:g}" if "float" in kind else ""
    )
    if numeral and (value := _number(text, least, whole="int" in kind)) is not None:
        return value
    raise ValueError(f"{name}={text}: expected {' or '.join([numeral, *words] if numeral else words)}")


def _words(name: str, kind: str) -> dict[str, object]:
    """What is no number, by how it is written."""
    if name == "when_no_pair":
        return {word: word for word in get_args(WhenNoPair)}
    if "bool" in kind:
        return {"true": True, "false": False}
    return {"none": None} if "None" in kind else {}


def _number(text: str, least: float, *, whole: bool) -> float | None:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return None
    return value if least <= value < math.inf else None


def servers_of(args: argparse.Namespace) -> tuple[Server, ...]:
    found: list[Server] = []
    roles: tuple[Role, ...] = ("prefill", "decode", "plain")
    for role in roles:
        for number, url in enumerate(getattr(args, role), 1):
            name = f"{role}-{number}"
            if urlsplit(url).hostname is None:
                raise SystemExit(f"--{role} {url}: write an address such as http://127.0.0.1:8100")
            forced = args.force_include_usage
            found.append(Server(name, name, role, url, api_key=args.server_api_key, forces_usage=forced))
    return tuple(found)


class Alone:
    """The ASGI application of a router without a console. It learns the model's name from the servers, trying until
    one answers, and each server's longest context likewise."""

    def __init__(self, args: argparse.Namespace, place: Place | None = None) -> None:
        self._args = args
        self._servers = servers_of(args)
        self._model: str | None = args.model
        self._learning: asyncio.Task[None] | None = None
        self._said: set[str] = set()
        self.router = Router(max_body_bytes=args.max_body_mib * MIB, seat=None if place is None else place.seat)
        self._place = place
        self._colleagues = None if place is None else Colleagues(place.number, place.inboxes, self._figures)
        self._before = b"" if place is None else place.kept.read(place.number)
        """What the workers counted that this one succeeds."""
        self._publish()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and scope["path"] in HEALTH:
            await _answer(send, b"text/plain; charset=utf-8", b"ok\n")
        elif scope["type"] == "http" and scope["path"] == "/metrics":
            await _answer(send, b"text/plain; version=0.0.4; charset=utf-8", await self._metrics())
        else:
            await self.router(scope, receive, send)

    def _figures(self) -> bytes:
        """What others are told is kept first: no count that was seen may be lost."""
        figures = pack(self.router.metrics, self._before)
        if self._place is not None:
            self._place.kept.write(self._place.number, counts_of(figures))
        return figures

    async def _metrics(self) -> bytes:
        """Of all workers, whichever is asked."""
        if self._colleagues is None or self._place is None:
            return self.router.metrics.render()
        told, kept = await self._colleagues.ask(), self._place.kept
        return render(self._figures(), [(answer, kept.read(number)) for number, answer in told.items()])

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._learning = asyncio.get_running_loop().create_task(self._learn())
        if self._colleagues is not None:
            self._colleagues.listen()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._learning.cancel()
        if self._colleagues is not None:
            self._colleagues.close()
        await self.router.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    def _publish(self) -> None:
        """Until a name is known, requests for any model are answered with 503."""
        if self._model is None:
            return
        keys = frozenset(hashlib.sha256(key.encode()).hexdigest() for key in self._args.api_key) or None
        deployment = Deployment("alone", self._model, self._servers, policy=self._args.policy, key_hashes=keys)
        table = Table(self.router.table.epoch + 1, MappingProxyType({self._model: deployment}))
        self.router.swap(table)

    async def _learn(self) -> None:
        unknown = {server.id for server in self._servers}
        while unknown:
            for server in [server for server in self._servers if server.id in unknown]:
                if await self._learn_from(server):
                    unknown.discard(server.id)
            await asyncio.sleep(RETRY_CARDS_S if unknown else 0)

    async def _learn_from(self, server: Server) -> bool:
        backend = Backend(server, 1)
        try:
            cards = await ask_cards(backend)
        except LegError as error:
            self._say_once(f"{server.name} at {server.url} does not tell what it serves: {error}{hint(error)}")
            cards = []
        backend.pool.retire()
        if not cards:
            return False
        card = next((card for card in cards if card.get("id") == self._model), cards[0])
        known = replace(server, max_model_len=card.get("max_model_len"))
        self._servers = tuple(known if old.id == server.id else old for old in self._servers)
        self._model = self._model or str(card["id"])
        self._publish()
        return True

    def _say_once(self, text: str) -> None:
        """It is asked again and again."""
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


def hint(error: LegError) -> str:
    return " That key is given with --server-api-key." if isinstance(error, KeyRefused) else ""


async def _answer(send: Send, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


__all__ = ["Message", "main"]
