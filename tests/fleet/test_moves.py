"""Moving a server between roles: what is refused, what is said, and how it is carried on."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from console.accounts.models import AuditEntry
from console.fleet import actions, moves
from console.fleet.errors import Conflict, Forbidden, Invalid
from console.fleet.models import Deployment, Move, Server
from console.fleet.states import MoveStatus, ServerRole, ServerState
from tests.factories import OPERATOR, VIEWER, make_deployment, make_host, make_server
from tests.sent import Sent
from tests.traffic.requests import store

pytestmark = pytest.mark.django_db(transaction=True)
S, R, M = ServerState, ServerRole, MoveStatus


def make_yard(prefill: int = 2, decode: int = 2, **fields: Any) -> tuple[Deployment, list[Server]]:
    """A deployment of ready servers on one host, prefill servers first."""
    deployment, host = make_deployment(**fields), make_host(gpus=prefill + decode)
    roles = [R.PREFILL] * prefill + [R.DECODE] * decode
    servers = [make_server(role, S.READY, deployment, host, gpu_indexes=[index]) for index, role in enumerate(roles)]
    return deployment, servers


def set_state(server: Server, state: ServerState, **fields: Any) -> None:
    Server.objects.filter(pk=server.pk).update(state=state, **fields)


def advance(move: Move) -> Move:
    fresh = Move.objects.select_related("server", "server__host", "server__deployment").get(pk=move.pk)
    moves.advance(fresh)
    return Move.objects.get(pk=move.pk)


def test_a_request_takes_the_server_out_of_traffic(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR, "long answers today")
    assert (move.status, move.from_role, move.to_role) == (M.DRAINING, R.PREFILL, R.DECODE)
    assert Server.objects.get(pk=servers[0].pk).state == S.DRAINING
    assert AuditEntry.objects.get(action="server.move").reason == "long answers today"


def test_a_move_goes_through_every_step(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    set_state(servers[0], S.STOPPING)
    assert advance(move).status == M.STOPPING
    set_state(servers[0], S.STOPPED)
    assert advance(move).status == M.STARTING
    server = Server.objects.get(pk=servers[0].pk)
    assert (server.state, server.role, server.generation) == (S.PENDING, R.DECODE, 2)
    assert [task for task, _, _ in sent] == ["agent.launch"]
    set_state(servers[0], S.VERIFYING)
    assert advance(move).status == M.VERIFYING
    set_state(servers[0], S.READY)
    done = advance(move)
    assert done.status == M.DONE
    marks = [done.out_of_traffic_at, done.drained_at, done.stopped_at, done.started_at, done.verifying_at]
    assert None not in marks
    assert done.out_of_service is not None


def test_advancing_twice_starts_one_process(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    set_state(servers[0], S.STOPPED)
    stale = Move.objects.select_related("server", "server__host", "server__deployment").get(pk=move.pk)
    advance(move)
    assert not moves.advance(stale)
    assert len(sent) == 1
    assert Server.objects.get(pk=servers[0].pk).generation == 2


def test_a_cancelled_move_puts_the_server_back_into_traffic(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    assert moves.cancel(move.pk, OPERATOR).status == M.CANCELLED
    server = Server.objects.get(pk=servers[0].pk)
    assert (server.state, server.role, server.generation) == (S.READY, R.PREFILL, 1)


def test_past_draining_a_move_cannot_be_cancelled(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    set_state(servers[0], S.STOPPING)
    with pytest.raises(Conflict, match="only a draining server"):
        moves.cancel(move.pk, OPERATOR)


def test_one_move_at_a_time(sent: Sent) -> None:
    _, servers = make_yard()
    moves.request(servers[0].pk, "decode", OPERATOR)
    with pytest.raises(Conflict, match="One at a time"):
        moves.request(servers[1].pk, "plain", OPERATOR)
    assert Server.objects.get(pk=servers[1].pk).state == S.READY


def test_the_role_it_has_is_no_move(sent: Sent) -> None:
    _, servers = make_yard()
    with pytest.raises(Invalid, match="has the role prefill already"):
        moves.request(servers[0].pk, "prefill", OPERATOR)


def test_a_word_that_is_no_role_is_refused() -> None:
    _, servers = make_yard()
    with pytest.raises(Invalid) as refused:
        moves.request(servers[0].pk, "both", OPERATOR)
    assert refused.value.field == "role"


def test_a_viewer_cannot_move() -> None:
    _, servers = make_yard()
    with pytest.raises(Forbidden):
        moves.request(servers[0].pk, "decode", VIEWER)


@pytest.mark.parametrize("state", [S.STOPPED, S.LOADING, S.DRAINING, S.UNREACHABLE, S.FAILED])
def test_only_a_ready_server_moves(state: ServerState) -> None:
    _, servers = make_yard()
    set_state(servers[0], state)
    with pytest.raises(Conflict, match=f"is {state}. Only a ready server"):
        moves.request(servers[0].pk, "decode", OPERATOR)


def test_a_host_in_maintenance_keeps_its_servers_in_place() -> None:
    _, servers = make_yard()
    actions.set_maintenance(servers[0].own_host.pk, True, OPERATOR)
    assert "in maintenance" in moves.preview(servers[0].pk, "decode")["refused"][0]


def test_a_split_role_needs_a_connector() -> None:
    deployment = make_deployment(connector="")
    server = make_server(R.PLAIN, S.READY, deployment)
    assert "no KV connector" in moves.preview(server.pk, "decode")["refused"][0]


def test_the_preview_counts_what_takes_traffic() -> None:
    _, servers = make_yard()
    seen = moves.preview(servers[0].pk, "decode")
    assert seen["before"] == {"plain": 0, "prefill": 2, "decode": 2}
    assert seen["during"] == {"plain": 0, "prefill": 1, "decode": 2}
    assert seen["after"] == {"plain": 0, "prefill": 1, "decode": 3}
    assert len(seen["pairs_after"]) == 3
    assert (seen["refused"], seen["needs_confirmation"], seen["expected_s"]) == ([], False, None)


def test_a_first_move_is_expected_to_take_its_last_request_its_stop_and_a_start() -> None:
    _, servers = make_yard()
    began = timezone.now() - timedelta(minutes=5)
    Server.objects.filter(pk=servers[0].pk).update(started_at=began, ready_at=began + timedelta(seconds=40))
    for number in range(10):
        store(servers[0].deployment_id, finished_ms=1000.0 * (number + 1))
    assert moves.preview(servers[0].pk, "decode")["expected_s"] == 10 + 3 + 40


@pytest.mark.parametrize(("index", "word"), [(0, "last ready prefill"), (1, "last ready decode")])
def test_the_last_of_a_role_moves_only_when_confirmed(index: int, word: str, sent: Sent) -> None:
    _, servers = make_yard(prefill=1, decode=1)
    target = "plain"
    with pytest.raises(Conflict, match=word) as refused:
        moves.request(servers[index].pk, target, OPERATOR)
    assert refused.value.field == "confirmed"
    assert moves.request(servers[index].pk, target, OPERATOR, confirmed=True).status == M.DRAINING


def test_the_only_server_moves_only_when_confirmed(sent: Sent) -> None:
    server = make_server(R.PLAIN, S.READY)
    with pytest.raises(Conflict, match="every request fails"):
        moves.request(server.pk, "prefill", OPERATOR)


def failed_move(sent: Sent) -> tuple[Move, Server]:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    set_state(servers[0], S.STOPPED)
    advance(move)
    set_state(servers[0], S.FAILED, failure={"message": "NIXL is not available."})
    return advance(move), Server.objects.get(pk=servers[0].pk)


def test_a_failed_start_says_what_stands_and_offers_ways_out(sent: Sent) -> None:
    move, server = failed_move(sent)
    assert move.status == M.FAILED
    assert f"{server.name} stands failed as decode: NIXL is not available." in move.error
    assert moves.ways_out(move) == ["retry", "back", "plain"]


def test_retry_starts_it_again_in_the_new_role(sent: Sent) -> None:
    failed, server = failed_move(sent)
    again = moves.retry(failed.pk, OPERATOR)
    assert (again.status, again.to_role) == (M.STARTING, R.DECODE)
    fresh = Server.objects.get(pk=server.pk)
    assert (fresh.state, fresh.role, fresh.generation) == (S.PENDING, R.DECODE, 3)


def test_the_way_back_starts_it_in_its_old_role(sent: Sent) -> None:
    failed, server = failed_move(sent)
    moves.way_back(failed.pk, OPERATOR)
    assert Server.objects.get(pk=server.pk).role == R.PREFILL


def test_a_failed_move_offers_its_ways_out_once(sent: Sent) -> None:
    failed, _ = failed_move(sent)
    moves.to_plain(failed.pk, OPERATOR)
    with pytest.raises(Conflict, match="no longer"):
        moves.retry(failed.pk, OPERATOR)


def test_a_move_whose_gpu_was_taken_meanwhile_fails_and_says_so(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    set_state(servers[0], S.STOPPED)
    thief = make_server(host=servers[0].host, state=S.READY, gpu_indexes=[0])
    failed = advance(move)
    assert failed.status == M.FAILED
    assert f"held by {thief.name}" in failed.error


def test_stopping_a_server_on_its_way_up_ends_its_move(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    set_state(servers[0], S.STOPPED)
    advance(move)
    set_state(servers[0], S.LOADING)
    actions.stop(servers[0].pk, OPERATOR)
    assert "stopped by olga" in advance(move).error


def test_a_draining_move_is_cancelled_rather_than_stopped_over(sent: Sent) -> None:
    _, servers = make_yard()
    moves.request(servers[0].pk, "decode", OPERATOR)
    with pytest.raises(Conflict, match="cancel it"):
        actions.stop(servers[0].pk, OPERATOR)


def test_force_does_not_wait_for_running_requests(sent: Sent) -> None:
    _, servers = make_yard()
    move = moves.request(servers[0].pk, "decode", OPERATOR)
    assert moves.force(move.pk, OPERATOR).status == M.STOPPING
    assert sent[0][:2] == ("agent.stop", [servers[0].pk, 1, 0.0])
