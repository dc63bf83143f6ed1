"""A drill on a host: the engine of a simulated server is killed, and nothing else ever."""

import pytest

from console.fleet import actions
from console.fleet.models import Server
from console.fleet.states import ServerState
from console.launch import process
from tests.factories import OPERATOR
from tests.launch.hosts import TestHost
from tests.launch.running import (
    Installation,
    add_server,
    make_deployment,
    running,
    start_pair,
    wait_for_pair,
    wait_for_state,
)
from tests.waiting import wait_for

__all__ = ["running"]
S = ServerState


def test_a_real_engine_is_not_touched(host: TestHost) -> None:
    host.launch()
    host.wait(lambda seen: seen["alive"])
    assert host.starts.drill(7, 1, "olga") is False
    assert host.seen()["alive"]
    assert host.seen()["cause"] is None


@pytest.mark.parametrize(("server_id", "generation"), [(7, 2), (8, 1)])
def test_another_start_is_not_touched(host: TestHost, server_id: int, generation: int) -> None:
    host.launch()
    assert host.starts.drill(server_id, generation, "olga") is False
    assert host.seen()["alive"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_page_tells_what_happened_and_the_peer_serves_on(running: Installation, role: str) -> None:
    prefill, decode = start_pair(running)
    struck, peer = (prefill, decode) if role == "prefill" else (decode, prefill)
    actions.drill(struck.pk, OPERATOR)
    failed = wait_for_state(struck, S.FAILED)
    assert failed.failure["code"] == "drill"
    assert "olga had its engine killed" in failed.failure["message"]
    assert Server.objects.get(pk=peer.pk).state == S.READY
    wait_for(lambda: not running.engines(struck), "its processes to be gone")
    actions.start(struck.pk, OPERATOR)
    wait_for_state(struck, S.READY)
    wait_for_pair(prefill, decode)


def test_of_an_engine_beside_its_api_server_only_the_engine_is_killed(running: Installation) -> None:
    server = add_server(make_deployment(SIMULATOR_PROCESSES="2"), "plain", running.next_gpu())
    actions.start(server.pk, OPERATOR)
    observed = wait_for_state(server, S.READY).observed
    group = process.Group(tuple(observed["group_pids"]))
    engines = process.engines_of(group)
    assert engines.pids
    assert observed["pid"] not in engines.pids
    actions.drill(server.pk, OPERATOR)
    failed = wait_for_state(server, S.FAILED)
    assert (failed.failure["code"], failed.observed["exit_code"]) == ("drill", 0)
