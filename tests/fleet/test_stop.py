"""Stopping: traffic first, then the process; and taking it back."""

from datetime import timedelta

import pytest
from django.utils import timezone

from console.fleet import actions
from console.fleet.errors import Conflict, Forbidden
from console.fleet.models import Server
from console.fleet.states import ServerState
from tests.factories import OPERATOR, VIEWER, make_host, make_server
from tests.sent import Sent

pytestmark = pytest.mark.django_db(transaction=True)
S = ServerState


def test_a_serving_server_drains_first(sent: Sent) -> None:
    server = make_server(state=S.READY)
    assert actions.stop(server.pk, OPERATOR).state == S.DRAINING
    assert sent == []
    assert Server.objects.get(pk=server.pk).drain_epoch is not None


def test_a_forced_stop_ends_it_at_once(sent: Sent) -> None:
    server = make_server(state=S.READY)
    assert actions.stop(server.pk, OPERATOR, force=True).state == S.STOPPING
    assert sent == [("agent.stop", [server.pk, 1, 0.0], f"host.{server.own_host.name}")]


def test_force_cuts_a_drain_short(sent: Sent) -> None:
    server = make_server(state=S.READY)
    actions.stop(server.pk, OPERATOR)
    assert actions.stop(server.pk, OPERATOR, force=True).state == S.STOPPING


@pytest.mark.parametrize("state", [S.PENDING, S.STARTING, S.LOADING, S.VERIFYING])
def test_a_server_on_its_way_up_is_ended_at_once(state: ServerState, sent: Sent) -> None:
    server = make_server(state=state)
    assert actions.stop(server.pk, OPERATOR).state == S.STOPPING
    assert [task for task, _, _ in sent] == ["agent.stop"]


def test_leftovers_of_a_failed_server_are_ended(sent: Sent) -> None:
    server = make_server(state=S.FAILED, observed={"generation": 1, "alive": False, "group_pids": [99]})
    assert actions.stop(server.pk, OPERATOR).state == S.STOPPING


@pytest.mark.parametrize("state", [S.STOPPED, S.FAILED])
def test_what_does_not_run_cannot_be_stopped(state: ServerState) -> None:
    with pytest.raises(Conflict, match="nothing of it runs"):
        actions.stop(make_server(state=state).pk, OPERATOR)


@pytest.mark.parametrize(("state", "words"), [(S.STOPPING, "being stopped already"), (S.DRAINING, "draining already")])
def test_a_second_stop_says_so(state: ServerState, words: str) -> None:
    with pytest.raises(Conflict, match=words):
        actions.stop(make_server(state=state).pk, OPERATOR)


def test_a_viewer_cannot_stop() -> None:
    with pytest.raises(Forbidden):
        actions.stop(make_server(state=S.READY).pk, VIEWER)


def test_a_stop_is_taken_back_while_it_drains(sent: Sent) -> None:
    server = make_server(state=S.READY)
    actions.stop(server.pk, OPERATOR)
    back = actions.cancel_stop(server.pk, OPERATOR)
    assert (back.state, back.drain_epoch, back.stop_reason) == (S.READY, None, "")


def test_a_stop_cannot_be_taken_back_once_the_process_is_being_ended(sent: Sent) -> None:
    server = make_server(state=S.LOADING)
    actions.stop(server.pk, OPERATOR)
    with pytest.raises(Conflict, match="Only a draining server"):
        actions.cancel_stop(server.pk, OPERATOR)


def test_a_server_on_a_dead_host_can_be_given_up(sent: Sent) -> None:
    host = make_host(last_seen_at=timezone.now() - timedelta(hours=1))
    server = make_server(state=S.UNREACHABLE, host=host, observed={"generation": 1, "alive": True, "group_pids": [9]})
    given_up = actions.stop(server.pk, OPERATOR, force=True)
    assert (given_up.state, given_up.holds_gpu) == (S.STOPPED, False)
    assert sent == []
