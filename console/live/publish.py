"""Tells the browsers of every change to a server or a move, once it is committed."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import transaction
from django.dispatch import receiver

from console.fleet import cards, signals
from console.fleet.models import Deployment, Move, Pair, Server
from console.fleet.states import ServerState
from console.gateway import loads
from console.live import bus
from console.live.events import MoveEvent, ServerEvent, ServerRemovedEvent
from console.live.snapshot import mode_of


def _after_commit(publish: Callable[[], None]) -> None:
    """The change stands whatever becomes of the telling, hence `robust`."""
    transaction.on_commit(publish, robust=True)


@receiver(signals.server_changed)
def on_server(server: Server, **_: Any) -> None:
    _after_commit(lambda: tell_server(server.pk))


@receiver(signals.deployment_changed)
def on_deployment(deployment: Deployment, **_: Any) -> None:
    """Cards of servers that run on older settings say so."""
    behind = deployment.servers.filter(state=ServerState.READY, revision__lt=deployment.revision)
    for server_id in behind.values_list("pk", flat=True):
        _after_commit(partial(tell_server, server_id))


@receiver(signals.pair_changed)
def on_pair(pair: Pair, **_: Any) -> None:
    """Its servers' cards say whether they are verified."""
    _after_commit(lambda: tell_server(pair.prefill_id))
    _after_commit(lambda: tell_server(pair.decode_id))


@receiver(signals.move_changed)
def on_move(move: Move, **_: Any) -> None:
    _after_commit(lambda: tell_move(move.pk))


@receiver(signals.server_removed)
def on_server_removed(server_id: int, deployment_id: int, **_: Any) -> None:
    event: ServerRemovedEvent = {"type": "server_removed", "id": server_id}
    _after_commit(lambda: bus.publish(deployment_id, [event]))


def tell_server(server_id: int) -> None:
    """Reads the row afresh: of several changes in one transaction, the last one counts."""
    server = Server.objects.with_names().filter(pk=server_id).first()
    if server is None:
        return
    card = cards.server_card(server, loads.read().get(server_id))
    event: ServerEvent = {"type": "server", "server": card, "mode": mode_of(server.deployment)}
    bus.publish(server.deployment_id, [event])


def tell_move(move_id: int) -> None:
    move = Move.objects.select_related("server").filter(pk=move_id).first()
    if move is not None:
        event: MoveEvent = {"type": "move", "move": cards.move_card(move)}
        bus.publish(move.deployment_id, [event])
