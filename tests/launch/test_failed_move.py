"""A move whose start fails, by an argument that the engine does not know, and each way out that its page offers."""

import pytest
from django.test import Client

from console.accounts.models import Role
from console.fleet import actions, moves
from console.fleet.models import Move, Server
from console.fleet.states import MoveStatus, ServerRole, ServerState
from tests.factories import ADMIN, OPERATOR, make_user
from tests.launch.clients import traffic, wait_for_more
from tests.launch.running import (
    Installation,
    add_server,
    running,
    start_pair,
    wait_for_end,
    wait_for_pair,
    wait_for_state,
)

__all__ = ["running"]

BAD = "--no-such-flag"


@pytest.fixture(scope="module")
def yard(running: Installation) -> tuple[Server, Server, Server]:
    """A prefill server, a decode server, and one more prefill server, which is the one that moves."""
    prefill, decode = start_pair(running)
    mover = add_server(prefill.deployment, ServerRole.PREFILL, running.next_gpu())
    actions.start(mover.pk, OPERATOR)
    wait_for_state(mover, ServerState.READY)
    return prefill, decode, mover


@pytest.fixture(scope="module")
def browser(running: Installation) -> Client:
    client = Client()
    client.force_login(make_user(Role.OPERATOR))
    return client


def set_arguments(server: Server, *arguments: str) -> None:
    actions.update_deployment(server.deployment_id, ADMIN, {"engine_args": list(arguments)})


def failed_move(browser: Client, mover: Server) -> Move:
    """From prefill to decode, begun on its page; the newest one when it stands failed already."""
    fresh = Server.objects.get(pk=mover.pk)
    if fresh.state == ServerState.FAILED:
        return Move.objects.filter(server=mover).latest("id")
    if fresh.role != ServerRole.PREFILL:
        wait_for_end(moves.request(mover.pk, "prefill", OPERATOR))
    set_arguments(mover, BAD)
    assert browser.post(f"/servers/{mover.pk}/move/", {"role": "decode"}).status_code == 302
    move = wait_for_end(Move.objects.filter(server=mover).latest("id"))
    assert move.status == MoveStatus.FAILED
    return move


def press(browser: Client, move: Move, way: str) -> Move:
    """One of the buttons on the page of a failed move; the move that it began, whose page comes next."""
    answer = browser.post(f"/moves/{move.pk}/again/", {"way": way})
    newest = Move.objects.filter(server=move.server_id).latest("id")
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/moves/{newest.pk}/")
    return newest


def test_a_failed_start_tells_its_cause_and_what_to_do_and_costs_no_request(
    running: Installation, yard: tuple[Server, Server, Server], browser: Client
) -> None:
    _, _, mover = yard
    with traffic(running, mover.deployment.served_model_name) as statuses:
        wait_for_more(statuses)
        move = failed_move(browser, mover)
        wait_for_more(statuses)
    assert set(statuses) == {200}
    page = browser.get(f"/moves/{move.pk}/").text
    assert BAD in page
    assert "Correct the deployment" in page
    for offer in ("Try again as decode", "Back to prefill", "Start it as plain"):
        assert offer in page


def test_trying_again_with_the_cause_still_there_fails_and_offers_the_same(
    yard: tuple[Server, Server, Server], browser: Client
) -> None:
    _, _, mover = yard
    again = wait_for_end(press(browser, failed_move(browser, mover), "retry"))
    assert again.status == MoveStatus.FAILED
    assert "Try again as decode" in browser.get(f"/moves/{again.pk}/").text


@pytest.mark.parametrize(("way", "role"), [("retry", "decode"), ("back", "prefill"), ("plain", "plain")])
def test_each_way_out_works_once_the_cause_is_gone(
    way: str, role: str, yard: tuple[Server, Server, Server], browser: Client
) -> None:
    prefill, decode, mover = yard
    failed = failed_move(browser, mover)
    set_arguments(mover)
    move = wait_for_end(press(browser, failed, way))
    assert (move.status, move.error) == (MoveStatus.DONE, "")
    fresh = wait_for_state(mover, ServerState.READY)
    assert fresh.role == role
    if role == ServerRole.DECODE:
        wait_for_pair(prefill, mover)
    if role == ServerRole.PREFILL:
        wait_for_pair(mover, decode)
