"""What a message about GPUs advises can be done: a server keeps those that it was added with."""

from collections.abc import Callable

import pytest

from console.fleet import actions, starting
from console.fleet.errors import Conflict
from console.fleet.models import Server
from console.fleet.states import ServerRole, ServerState
from tests.factories import OPERATOR, make_deployment, make_host, make_server

pytestmark = pytest.mark.django_db


def make_waiting() -> tuple[Server, Server]:
    """One that holds a GPU, and one at rest that was added for the same."""
    deployment, host = make_deployment("chat"), make_host("gpu01")
    holds = make_server(ServerRole.DECODE, ServerState.READY, deployment, host, name="chat-1")
    return holds, make_server(ServerRole.PREFILL, ServerState.STOPPED, deployment, host, name="chat-2")


def stop_the_other(holds: Server, waits: Server) -> Server:
    Server.objects.filter(pk=holds.pk).update(state=ServerState.STOPPED)
    return waits


def add_on_another(holds: Server, waits: Server) -> Server:
    actions.delete_server(waits.pk, OPERATOR)
    return actions.add_server(
        OPERATOR, deployment_id=holds.deployment_id, host_id=waits.own_host.pk, role="prefill", gpu_indexes=[1]
    )


@pytest.mark.parametrize("as_advised", [stop_the_other, add_on_another])
def test_what_is_advised_where_a_gpu_is_held_lets_the_server_start(
    as_advised: Callable[[Server, Server], Server],
) -> None:
    holds, waits = make_waiting()
    with pytest.raises(Conflict, match="Stop chat-1, or delete chat-2 and add a server on other GPUs"):
        starting.gpus_are_free(waits)
    starting.gpus_are_free(as_advised(holds, waits))
