"""The declared graph, and what a transition promises."""

import pytest

from console.fleet.models import Server
from console.fleet.states import GRAPH, ServerState, may_become
from tests.factories import make_server

pytestmark = pytest.mark.django_db


def test_every_state_can_be_left() -> None:
    assert all(GRAPH[state] for state in ServerState)


def test_a_stopped_server_can_only_be_started() -> None:
    assert GRAPH[ServerState.STOPPED] == {ServerState.PENDING}


def test_a_serving_server_is_drained_before_it_is_stopped() -> None:
    assert not may_become(ServerState.READY, ServerState.STOPPING)


def test_of_two_transitions_from_the_same_state_one_wins() -> None:
    first = make_server()
    second = Server.objects.get(pk=first.pk)
    assert first.transition(ServerState.PENDING)
    assert not second.transition(ServerState.PENDING)


def test_news_of_an_earlier_start_cannot_change_a_later_one() -> None:
    server = make_server(state=ServerState.LOADING)
    Server.objects.filter(pk=server.pk).update(generation=2)
    assert not server.transition(ServerState.FAILED)
    assert Server.objects.get(pk=server.pk).state == ServerState.LOADING


def test_an_edge_that_the_graph_lacks_is_a_mistake_in_the_code() -> None:
    with pytest.raises(ValueError, match="cannot go from stopped to ready"):
        make_server().transition(ServerState.READY)
