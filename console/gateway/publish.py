"""Tells the routers that what they serve has changed: the epoch grows with the change, a nudge follows the commit."""

import logging
from typing import Any

from django.db import transaction
from django.dispatch import receiver

from console import valkey
from console.fleet import signals
from console.fleet.models import Server
from console.fleet.states import ServerState
from console.gateway.models import Epoch

log = logging.getLogger(__name__)


def channel() -> str:
    return valkey.key("routing")


def changed() -> int:
    """Call inside the transaction of a change that matters to routing. Returns the epoch that contains it."""
    epoch = Epoch.bump()
    transaction.on_commit(lambda: nudge(epoch))
    return epoch


def nudge(epoch: int) -> None:
    """Saves the routers up to a second; they look at the epoch themselves when nobody tells them."""
    try:
        valkey.client().publish(channel(), epoch)
    except valkey.Down as error:
        log.warning("routers were not told of epoch %d (they look once a second): %s", epoch, error)


@receiver(signals.server_changed)
def on_server(server: Server, old_state: ServerState, **_: Any) -> None:
    """Facts that only its card shows do not concern the routers; a change of state does."""
    if server.state == old_state:
        return
    epoch = changed()
    if server.state == ServerState.DRAINING:
        server.drain_epoch = epoch
        Server.objects.filter(pk=server.pk).update(drain_epoch=epoch)


@receiver(signals.server_removed)
@receiver(signals.deployment_changed)
@receiver(signals.pair_changed)
@receiver(signals.host_changed)
def on_change(**_: Any) -> None:
    changed()
