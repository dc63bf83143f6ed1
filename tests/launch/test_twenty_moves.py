"""Twenty moves of every kind, one after the other, under a steady mix of requests: not one of them fails."""

import itertools

from console.fleet import actions, moves
from console.fleet.models import Move, Server
from console.fleet.states import MoveStatus, ServerState
from tests.factories import ADMIN, OPERATOR
from tests.launch.clients import wait_for_routers
from tests.launch.running import Installation, add_server, running, start_pair, wait_for_end, wait_for_state
from tests.mixed_load import MixedLoad

__all__ = ["running"]

EACH = 10
ONE_WAY = ("decode", "plain", "prefill")
OTHER_WAY = ("prefill", "plain", "decode")


def test_twenty_moves_under_a_mixed_load_fail_no_request(running: Installation) -> None:
    prefill, _ = start_pair(running)
    deployment = actions.update_deployment(prefill.deployment_id, ADMIN, {"plain_share_percent": 30})
    movers = [add_server(deployment, role, running.next_gpu()) for role in ("prefill", "decode")]
    for server in movers:
        actions.start(server.pk, OPERATOR)
    for server in movers:
        wait_for_state(server, ServerState.READY)
    wait_for_routers()
    roles = [itertools.cycle(way) for way in (ONE_WAY, OTHER_WAY)]
    with MixedLoad(f"http://127.0.0.1:{running.web_port}", deployment.served_model_name).running() as load:
        for turn in range(2 * EACH):
            server, role = movers[turn % 2], next(roles[turn % 2])
            move = wait_for_end(moves.request(server.pk, role, OPERATOR))
            assert (move.status, move.error) == (MoveStatus.DONE, "")
            load.wait_for_answers_through(server.name, role)
    assert load.problems == []
    assert Move.objects.filter(deployment=deployment, status=MoveStatus.DONE).count() == 2 * EACH
    assert {Server.objects.get(pk=server.pk).generation for server in movers} == {1 + EACH}
