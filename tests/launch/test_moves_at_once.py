"""Several moves asked for at the same moment, of a running console, by REST: one at a time in each deployment."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx

from console.accounts.models import ApiToken, Role
from console.fleet import actions
from console.fleet.models import Deployment, Move, Server
from console.fleet.states import MoveStatus, ServerRole, ServerState
from tests.factories import OPERATOR, make_user
from tests.launch.clients import answers
from tests.launch.running import (
    Installation,
    add_server,
    make_deployment,
    running,
    wait_for_end,
    wait_for_state,
)
from tests.waiting import wait_until

__all__ = ["running"]

EACH = 3


def start_plain_servers(running: Installation, deployment: Deployment) -> list[Server]:
    servers = [add_server(deployment, ServerRole.PLAIN, running.next_gpu()) for _ in range(EACH)]
    for server in servers:
        actions.start(server.pk, OPERATOR)
    return servers


def ask_at_once(running: Installation, servers: list[Server]) -> list[httpx.Response]:
    """To move each to prefill, by clients of their own."""
    _, token = ApiToken.issue(make_user(Role.OPERATOR), "tests", Role.OPERATOR)
    headers = {"Authorization": f"Bearer {token}"}
    gate = Barrier(len(servers))

    def ask(server: Server) -> httpx.Response:
        with httpx.Client(base_url=f"http://127.0.0.1:{running.web_port}", headers=headers, timeout=120) as client:
            gate.wait()
            return client.post(f"/api/servers/{server.pk}/move", json={"role": "prefill"})

    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(ask, servers))


def test_of_moves_asked_at_once_one_of_each_deployment_is_done_and_the_others_are_told(running: Installation) -> None:
    one, other = (make_deployment(SIMULATOR_START_S="2") for _ in range(2))
    servers = [*start_plain_servers(running, one), *start_plain_servers(running, other)]
    for server in servers:
        wait_for_state(server, ServerState.READY)

    wait_until(lambda: answers(running, "/login/"), "the pages to answer")

    running.pause("worker")  # none of the moves ends while others are still asked for
    try:
        given = ask_at_once(running, servers)
    finally:
        running.resume("worker")

    for deployment, part in ((one, given[:EACH]), (other, given[EACH:])):
        assert sorted(answer.status_code for answer in part) == [202, 409, 409], [answer.text for answer in part]
        told = [answer.json()["error"]["message"] for answer in part if answer.status_code == 409]
        assert all("One at a time: wait for it to end." in message for message in told), told
        assert Move.objects.filter(deployment=deployment).count() == 1
    moves = [Move.objects.get(pk=answer.json()["id"]) for answer in given if answer.status_code == 202]
    ended = [wait_for_end(move) for move in moves]
    assert [move.status for move in ended] == [MoveStatus.DONE, MoveStatus.DONE]
    assert max(move.requested_at for move in ended) < min(move.finished_at for move in ended if move.finished_at)
    roles = sorted(Server.objects.filter(pk__in=[server.pk for server in servers]).values_list("role", "generation"))
    assert roles == [("plain", 1)] * 2 * (EACH - 1) + [("prefill", 2)] * 2
