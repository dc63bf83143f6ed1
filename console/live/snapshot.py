"""What a socket is told first: the yard as the database has it, and the charts of the last minutes."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypedDict

from console.fleet import cards
from console.fleet.models import Deployment, Move, Pair, Server, WhenNoPair
from console.fleet.states import ServerRole, ServerState
from console.gateway import loads as router_loads
from console.gateway.loads import RouterLoad, avoided_in
from console.live.events import MoveCard, ServerCard

MOVES_SHOWN = 20


class Yard(TypedDict):
    """The part of a snapshot that the tables hold."""

    deployment: str
    gap_limit_ms: float | None
    ttft_limit_ms: float | None
    mode: str
    servers: list[ServerCard]
    moves: list[MoveCard]


def yard(deployment_id: int, loads: Mapping[int, RouterLoad]) -> Yard | None:
    """None: the deployment is gone. The number of queries does not grow with its servers."""
    deployment = Deployment.objects.filter(pk=deployment_id).first()
    if deployment is None:
        return None
    servers = Server.objects.filter(deployment=deployment).with_names().with_doubtful_pairs()
    moves = Move.objects.filter(deployment=deployment).select_related("server")[:MOVES_SHOWN]
    avoided = avoided_in(loads)
    return {
        "deployment": deployment.name,
        "gap_limit_ms": deployment.gap_limit_ms,
        "ttft_limit_ms": deployment.ttft_limit_ms,
        "mode": mode(servers, deployment.when_no_pair, has_pair(deployment, avoided), avoided),
        "servers": [cards.server_card(server, loads.get(server.pk)) for server in servers],
        "moves": [cards.move_card(move) for move in moves],
    }


def has_pair(deployment: Deployment, avoided: Collection[int]) -> bool:
    return Pair.objects.splitting(avoided).filter(prefill__deployment=deployment).exists()


def mode_of(deployment: Deployment) -> str:
    """Two queries, small ones: it is asked for with each change of a server."""
    facts = ("role", "state", "state_before_unreachable", "api_port", "adopted_url", "host__address")
    avoided = avoided_in(router_loads.read())
    servers = Server.objects.filter(deployment=deployment).select_related("host").only(*facts)
    return mode(servers, deployment.when_no_pair, has_pair(deployment, avoided), avoided)


def mode(servers: Iterable[Server], when_no_pair: str, has_pair: bool, avoided: Collection[int] = ()) -> str:
    """What requests meet, as routers choose. `has_pair`: one is split through; without it nothing is split.

    A server whose host is silent counts until routers avoid it: `avoided`, by id.
    """
    routed = [server for server in servers if server.is_routed]
    ready = {server.role for server in routed if _answers(server, avoided)}
    if has_pair:
        return "split and plain" if ServerRole.PLAIN in ready else "split"
    if not ready & {ServerRole.PLAIN, ServerRole.DECODE}:
        return "down"
    if all(server.role == ServerRole.PLAIN for server in routed):
        return "plain"
    return "refusing" if when_no_pair == WhenNoPair.REFUSE else "fallback"


def _answers(server: Server, avoided: Collection[int]) -> bool:
    """As far as is known. An adopted server is asked itself: of one that is unreachable no answer was seen."""
    is_taken_for_alive = server.is_silent_but_used and not server.is_adopted and server.pk not in avoided
    return server.state == ServerState.READY or is_taken_for_alive
