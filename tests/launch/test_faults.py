"""What is killed comes back or is shown as gone; nothing runs twice, is lost, or is stopped while it serves."""

import time
from contextlib import suppress
from datetime import timedelta

import psutil
import pytest
from django.utils import timezone

from console.fleet import actions, moves
from console.fleet.cards import degradations
from console.fleet.errors import Conflict
from console.fleet.models import Host, Server
from console.fleet.states import MoveStatus, ServerState
from tests.environment import VALKEY
from tests.factories import OPERATOR
from tests.launch.clients import CLIENTS, OpenStream, answers, ask, is_recorded, traffic, wait_for_more
from tests.launch.running import (
    GPUS,
    Installation,
    add_server,
    make_deployment,
    running,
    start_pair,
    state_of,
    wait_for_end,
    wait_for_pair,
    wait_for_state,
)
from tests.waiting import wait_for

__all__ = ["running"]
S = ServerState


def start_plain(running: Installation, **engine_env: str) -> Server:
    server = add_server(make_deployment(**engine_env), "plain", running.next_gpu())
    actions.start(server.pk, OPERATOR)
    return wait_for_state(server, S.READY)


def only_engine(running: Installation, server: Server) -> psutil.Process:
    engines = running.engines(server)
    assert len(engines) == 1
    return engines[0]


def runs(process: psutil.Process) -> bool:
    """A process that ended and was not waited for by anybody does not run."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_a_server_killed_by_hand_is_seen_as_failed(running: Installation) -> None:
    server = start_plain(running)
    only_engine(running, server).kill()
    failed = wait_for_state(server, S.FAILED)
    assert failed.failure["message"]
    assert failed.failure["instruction"]


def test_an_engine_that_outlives_its_api_server_is_shown_and_cleared_by_stop(running: Installation) -> None:
    server = start_plain(running, SIMULATOR_PROCESSES="2")
    main = only_engine(running, server)
    children = main.children(recursive=True)
    assert children
    main.kill()
    failed = wait_for_state(server, S.FAILED)
    assert failed.leftover_pids
    told = [note["text"] for note in degradations(failed) if note["code"] == "left_behind"]
    assert str(failed.leftover_pids[0]) in told[0]
    with pytest.raises(Conflict, match="Press Stop"):
        actions.start(server.pk, OPERATOR)

    actions.stop(server.pk, OPERATOR)
    wait_for_state(server, S.STOPPED)
    assert not any(runs(child) for child in children)
    actions.start(server.pk, OPERATOR)
    wait_for_state(server, S.READY)


def test_a_worker_killed_while_a_server_starts_loses_nothing(running: Installation) -> None:
    server = add_server(make_deployment(SIMULATOR_START_S="8"), "plain", running.next_gpu())
    actions.start(server.pk, OPERATOR)
    wait_for(lambda: state_of(server) in (S.STARTING, S.LOADING), "the start to be seen")
    running.kill("worker")
    running.run_worker()
    wait_for_state(server, S.READY)
    assert Server.objects.get(pk=server.pk).generation == 1
    only_engine(running, server)


def test_a_worker_killed_during_a_move_leaves_one_that_the_next_worker_ends(running: Installation) -> None:
    _, decode = start_pair(running, SIMULATOR_START_S="2")
    move = moves.request(decode.pk, "plain", OPERATOR, confirmed=True)
    for status in (MoveStatus.STOPPING, MoveStatus.STARTING):
        wait_for(lambda: type(move).objects.get(pk=move.pk).status != MoveStatus.DRAINING, f"{status} or later")
        running.kill("worker")
        running.run_worker()
    ended = wait_for_end(move)
    assert (ended.status, ended.error) == (MoveStatus.DONE, "")
    assert Server.objects.get(pk=decode.pk).generation == 2
    only_engine(running, decode)


def test_an_agent_killed_leaves_its_servers_and_finds_them_again(running: Installation) -> None:
    server = start_plain(running)
    engine = only_engine(running, server)
    host = server.own_host
    seen_before = Host.objects.get(pk=host.pk).agent_started_at
    running.kill("gpu01")
    assert runs(engine)
    running.run_agent(gpus=GPUS)
    wait_for(lambda: Host.objects.get(pk=host.pk).agent_started_at != seen_before, "the new agent's report")
    fresh = wait_for_state(server, S.READY)
    assert (fresh.generation, fresh.observed["pid"]) == (1, engine.pid)
    actions.stop(server.pk, OPERATOR)
    wait_for_state(server, S.STOPPED)
    assert not runs(engine)


def test_one_silent_host_is_unreachable_and_its_servers_serve_on(running: Installation) -> None:
    running.run_agent("gpu02")
    server = add_server(make_deployment(), "plain", 0, host="gpu02")
    actions.start(server.pk, OPERATOR)
    wait_for_state(server, S.READY)
    engine = only_engine(running, server)
    running.pause("gpu02")
    lost = wait_for_state(server, S.UNREACHABLE)
    assert lost.state_before_unreachable == S.READY
    assert runs(engine)
    with pytest.raises(Conflict, match="unreachable"):
        moves.request(server.pk, "decode", OPERATOR, confirmed=True)
    running.resume("gpu02")
    back = wait_for_state(server, S.READY)
    assert (back.generation, only_engine(running, server).pid) == (1, engine.pid)
    running.kill("gpu02")


def test_a_blind_console_stops_nothing_and_calls_nobody_silent(running: Installation) -> None:
    server = start_plain(running)
    engine = only_engine(running, server)
    running.pause("worker")
    time.sleep(6)  # longer than a host may be silent
    running.resume("worker")
    reported = Server.objects.get(pk=server.pk).own_host.last_seen_at
    wait_for(lambda: Server.objects.get(pk=server.pk).own_host.last_seen_at != reported, "reports to be taken in again")
    assert state_of(server) == S.READY
    assert runs(engine)


def test_a_stop_reaches_a_host_that_is_busy_starting_others(running: Installation) -> None:
    victim = start_plain(running)
    deployment = make_deployment(SIMULATOR_START_S="60")
    starting = [add_server(deployment, "plain", running.next_gpu()) for _ in range(3)]
    for server in starting:
        actions.start(server.pk, OPERATOR)
    actions.stop(victim.pk, OPERATOR)
    wait_for_state(victim, S.STOPPED)
    assert not all(state_of(server) == S.READY for server in starting)
    for server in starting:
        actions.stop(server.pk, OPERATOR)
    for server in starting:
        wait_for_state(server, S.STOPPED)
        assert running.engines(server) == []


def test_a_killed_prefill_server_costs_no_request(running: Installation) -> None:
    prefill, _ = start_pair(running)
    with traffic(running, prefill.deployment.served_model_name) as statuses:
        wait_for_more(statuses)
        only_engine(running, prefill).kill()
        wait_for_state(prefill, S.FAILED)
        wait_for_more(statuses)
    assert set(statuses) == {200}


def test_a_killed_decode_server_costs_only_the_streams_that_ran_on_it(running: Installation) -> None:
    prefill, decode = start_pair(running)
    other = add_server(prefill.deployment, "decode", running.next_gpu())
    actions.start(other.pk, OPERATOR)
    wait_for_state(other, S.READY)
    wait_for_pair(prefill, other)
    with traffic(running, prefill.deployment.served_model_name) as statuses:
        wait_for_more(statuses)
        only_engine(running, decode).kill()
        wait_for_state(decode, S.FAILED)
        wait_for_more(statuses)
    assert statuses[0] <= CLIENTS
    assert set(statuses) <= {200, 0}


def test_a_killed_web_process_cuts_its_streams_and_nothing_else(running: Installation) -> None:
    prefill, decode = start_pair(running, SIMULATOR_SPEED="1")
    model = prefill.deployment.served_model_name
    finished = [ask(running, model) for _ in range(3)]
    wait_for(lambda: all(is_recorded(request_id) for request_id in finished[:-1]), "records of what had ended")

    stream = OpenStream(running, model)
    stream.wait_for_a_token()
    move = moves.request(decode.pk, "plain", OPERATOR, confirmed=True)
    engine = only_engine(running, prefill)
    running.kill("web")
    assert stream.ended_broken()

    running.run_web()  # as its supervisor does
    assert wait_for_end(move).status == MoveStatus.DONE
    assert (state_of(prefill), only_engine(running, prefill).pid) == (S.READY, engine.pid)
    wait_for(lambda: answers(running), "the router to answer")
    finished.append(ask(running, model))
    wait_for(lambda: is_recorded(finished[-1]), "records of what came after")
    assert all(is_recorded(request_id) for request_id in finished[:-2])


def test_a_console_whose_clock_jumped_ahead_stops_nothing(running: Installation) -> None:
    running.run_agent("gpu03")
    servers = [start_plain(running), add_server(make_deployment(), "plain", 0, host="gpu03")]
    actions.start(servers[1].pk, OPERATOR)
    wait_for_state(servers[1], S.READY)
    engines = [only_engine(running, server) for server in servers]
    time.sleep(5)  # by now a worker is sure that it hears well
    an_hour_ago = timezone.now() - timedelta(hours=1)
    Host.objects.update(last_seen_at=an_hour_ago)
    Server.objects.update(state_since=an_hour_ago)
    wait_for(lambda: not Host.objects.filter(last_seen_at=an_hour_ago, name__in=("gpu01", "gpu03")), "new reports")
    for server, engine in zip(servers, engines, strict=True):
        fresh = wait_for_state(server, S.READY)
        assert (fresh.generation, only_engine(running, server).pid) == (1, engine.pid)
    running.kill("gpu03")


def test_a_broker_that_went_away_is_found_again_and_nothing_was_stopped(running: Installation) -> None:
    server = start_plain(running)
    engine = only_engine(running, server)
    other = add_server(make_deployment(), "plain", running.next_gpu())
    assert VALKEY.process is not None
    VALKEY.process.kill()
    VALKEY.stop()
    try:
        assert actions.start(other.pk, OPERATOR).state == S.PENDING
        assert runs(engine)
    finally:
        VALKEY.start()
    wait_for_state(other, S.READY)
    only_engine(running, other)
    assert state_of(server) == S.READY
    assert only_engine(running, server).pid == engine.pid
