"""From start to traffic and through moves, with a real worker, beat, agent, router and simulated engines."""

import threading

from django.db import connection

from console.fleet import actions, moves, starting
from console.fleet.errors import Conflict
from console.fleet.models import Server
from console.fleet.states import MoveStatus, ServerRole, ServerState
from console.launch import remote
from tests.factories import OPERATOR
from tests.launch.clients import traffic, wait_for_more
from tests.launch.running import (
    Installation,
    add_server,
    make_deployment,
    running,
    start_pair,
    wait_for_end,
    wait_for_pair,
    wait_for_state,
)

__all__ = ["running"]
S = ServerState


def test_start_verify_move_and_back(running: Installation) -> None:
    prefill, decode = start_pair(running)
    pair = wait_for_pair(prefill, decode)
    assert pair.canary_tokens is not None
    assert pair.canary_tokens > 16
    assert pair.transfer_ms is not None
    assert pair.transfer_bytes

    for role in ("plain", "decode"):
        move = wait_for_end(moves.request(decode.pk, role, OPERATOR, confirmed=True))
        assert (move.status, move.error) == (MoveStatus.DONE, "")
        fresh = Server.objects.get(pk=decode.pk)
        assert (fresh.state, fresh.role) == (S.READY, role)
        assert len(running.engines(decode)) == 1
    assert Server.objects.get(pk=decode.pk).generation == 3
    wait_for_pair(prefill, decode)

    actions.stop(prefill.pk, OPERATOR)
    wait_for_state(prefill, S.STOPPED)
    assert running.engines(prefill) == []


def test_no_request_fails_while_servers_are_moved(running: Installation) -> None:
    prefill, decode = start_pair(running)
    extra = add_server(prefill.deployment, "decode", running.next_gpu())
    actions.start(extra.pk, OPERATOR)
    wait_for_state(extra, S.READY)
    wait_for_pair(prefill, extra)
    with traffic(running, prefill.deployment.served_model_name) as statuses:
        wait_for_more(statuses)
        for role in ("plain", "prefill", "decode"):
            move = wait_for_end(moves.request(extra.pk, role, OPERATOR))
            assert (move.status, move.error) == (MoveStatus.DONE, "")
            wait_for_more(statuses)
    assert set(statuses) == {200}
    assert decode.role == ServerRole.DECODE


def test_two_operators_at_once_start_one_process(running: Installation) -> None:
    server = add_server(make_deployment(), "plain", running.next_gpu())
    outcomes: list[str] = []
    gate = threading.Barrier(2)

    def press() -> None:
        gate.wait()
        try:
            actions.start(server.pk, OPERATOR)
            outcomes.append("started")
        except Conflict as refused:
            outcomes.append(refused.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=press) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "started"]
    wait_for_state(server, S.READY)
    assert len(running.engines(server)) == 1


def test_a_launch_delivered_twice_starts_one_process(running: Installation) -> None:
    server = add_server(make_deployment(), "plain", running.next_gpu())
    actions.start(server.pk, OPERATOR)
    fresh = Server.objects.with_names().get(pk=server.pk)
    for _ in range(3):
        remote.launch_now(starting.again(fresh), fresh.own_host.queue)
    wait_for_state(server, S.READY)
    assert len(running.engines(server)) == 1


def test_the_end_of_its_log_is_read_through_its_host(running: Installation) -> None:
    server = add_server(make_deployment(), "plain", running.next_gpu())
    actions.start(server.pk, OPERATOR)
    ready = wait_for_state(server, S.READY)
    assert "Application startup complete" in remote.tail(ready, 50_000)["text"]


def test_a_move_taken_back_while_it_drains_serves_on(running: Installation) -> None:
    prefill, decode = start_pair(running)
    running.pause("worker")
    try:
        move = moves.request(decode.pk, "plain", OPERATOR, confirmed=True)
        moves.cancel(move.pk, OPERATOR)
    finally:
        running.resume("worker")
    fresh = Server.objects.get(pk=decode.pk)
    assert (fresh.state, fresh.role, fresh.generation) == (S.READY, ServerRole.DECODE, 1)
    with traffic(running, prefill.deployment.served_model_name) as statuses:
        wait_for_more(statuses)
    assert set(statuses) == {200}
