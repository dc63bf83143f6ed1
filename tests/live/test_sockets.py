"""The socket of a deployment, over a real connection: who may open it, what it says, how it ends."""

import threading
from typing import Any

import pytest
import redis
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import OperationalError
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from console.accounts.models import User
from console.fleet.models import Deployment, Server
from console.fleet.states import ServerRole, ServerState
from console.live import bus, doorkeeper
from console.live.consumers import LOGIN_ENDED, NO_SUCH_DEPLOYMENT
from tests.factories import make_deployment, make_server, make_user
from tests.waiting import wait_until
from tests.web import RunningWeb, receive, receive_event

pytestmark = pytest.mark.django_db(transaction=True)


def status_of_refused(web: RunningWeb, user: User | None, origin: str = "") -> int:
    with pytest.raises(InvalidStatus) as refused, web.socket("chat", user, origin):
        pass
    return refused.value.response.status_code


def test_while_the_database_is_away_a_socket_is_refused_and_its_page_tries_again(
    web: RunningWeb, viewer: User, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, not broken: a page may ask every few seconds, for as long as the database is away."""

    load: Any = SessionStore.load

    def fail(session: SessionStore) -> Any:
        if threading.current_thread() is threading.main_thread():  # this test logs somebody in
            return load(session)
        raise OperationalError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(SessionStore, "load", fail)
        with pytest.raises(InvalidStatus) as refused, web.socket("chat", viewer):
            pass
    assert refused.value.response.status_code == 403
    with web.socket("chat", viewer) as connection:
        assert receive(connection)["type"] == "snapshot"


def test_a_page_of_another_site_is_refused(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    assert status_of_refused(web, viewer, "https://evil.example") == 403


def test_without_a_login_it_is_refused(web: RunningWeb, deployment: Deployment) -> None:
    assert status_of_refused(web, None) == 403


def test_an_account_that_was_closed_is_refused(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    with web.socket("chat", viewer):
        pass
    User.objects.filter(pk=viewer.pk).update(is_active=False)
    assert status_of_refused(web, viewer) == 403


def test_an_unknown_deployment_is_closed_with_a_code_of_its_own(web: RunningWeb, viewer: User) -> None:
    with web.socket("nobody", viewer) as connection:
        assert closing_code(connection) == NO_SUCH_DEPLOYMENT


def test_the_first_message_is_a_snapshot(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    server = make_server(ServerRole.PLAIN, ServerState.READY, deployment)
    with web.socket("chat", viewer) as connection:
        snapshot = receive(connection)
    assert (snapshot["type"], snapshot["deployment"], snapshot["mode"]) == ("snapshot", "chat", "plain")
    assert [card["id"] for card in snapshot["servers"]] == [server.pk]
    assert (snapshot["ttft"], snapshot["gaps"], snapshot["long_prompts"], snapshot["requests"]) == ([], [], [], [])


def test_frames_continue_the_snapshot_without_a_gap(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    with web.socket("chat", viewer) as connection:
        snapshot = receive(connection)
        frames = [receive(connection) for _ in range(2)]  # heartbeats
    assert [frame["stream"] for frame in frames] == [snapshot["stream"]] * 2
    assert [frame["seq"] for frame in frames] == [snapshot["seq"] + 1, snapshot["seq"] + 2]


def test_a_change_of_state_reaches_the_card_when_it_is_committed(
    web: RunningWeb, viewer: User, deployment: Deployment
) -> None:
    server = make_server(ServerRole.PLAIN, ServerState.READY, deployment)
    with web.socket("chat", viewer) as connection:
        receive(connection)
        server.transition(ServerState.DRAINING)
        event = receive_event(connection, {"type": "server"})
    assert (event["server"]["id"], event["server"]["state"]) == (server.pk, "draining")


def test_events_of_another_deployment_are_not_shown(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    other = make_deployment("code")
    with web.socket("chat", viewer) as connection:
        receive(connection)
        bus.publish(other.pk, [{"type": "server_removed", "id": 1}])
        bus.publish(deployment.pk, [{"type": "server_removed", "id": 2}])
        assert receive_event(connection, {"type": "server_removed"})["id"] == 2


def test_events_for_everybody_are_shown(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    with web.socket("chat", viewer) as connection:
        receive(connection)
        bus.publish(None, [{"type": "server_removed", "id": 3}])
        assert receive_event(connection, {"type": "server_removed"})["id"] == 3


def test_a_fresh_snapshot_comes_when_asked_for(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    with web.socket("chat", viewer) as connection:
        receive(connection)
        connection.send('{"type": "snapshot"}')
        wait_until(lambda: receive(connection)["type"] == "snapshot", "a second snapshot")


@pytest.mark.parametrize("message", ["", "{", "[]", '{"type": "delete"}', b"\x00\xff"])
def test_whatever_a_client_says_does_no_harm(
    web: RunningWeb, viewer: User, deployment: Deployment, message: str | bytes
) -> None:
    with web.socket("chat", viewer) as connection:
        receive(connection)
        connection.send(message)
        bus.publish(deployment.pk, [{"type": "server_removed", "id": 5}])
        assert receive_event(connection, {"type": "server_removed"})["id"] == 5


def closing_code(connection: ClientConnection) -> int:
    try:
        while True:
            receive(connection)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else 0


def test_logging_out_ends_the_socket(
    valkey: "redis.Redis", viewer: User, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "LOOK_EVERY_S", 0.05)
    with RunningWeb() as web, web.socket("chat", viewer) as connection:
        receive(connection)
        Session.objects.all().delete()
        assert closing_code(connection) == LOGIN_ENDED


def test_others_stay_when_one_logs_out(
    valkey: "redis.Redis", viewer: User, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorkeeper, "LOOK_EVERY_S", 0.05)
    with RunningWeb() as web, web.socket("chat", make_user()) as stays:
        with web.socket("chat", viewer) as leaves:
            User.objects.filter(pk=viewer.pk).update(is_active=False)
            assert closing_code(leaves) == LOGIN_ENDED
        bus.publish(deployment.pk, [{"type": "server_removed", "id": 2}])
        assert receive_event(stays, {"type": "server_removed"})["id"] == 2


def test_a_deployment_that_is_deleted_ends_its_sockets_at_the_next_snapshot(
    web: RunningWeb, viewer: User, deployment: Deployment
) -> None:
    with web.socket("chat", viewer) as connection:
        receive(connection)
        Server.objects.all().delete()
        deployment.delete()
        connection.send('{"type": "snapshot"}')
        assert closing_code(connection) == NO_SUCH_DEPLOYMENT


def test_a_closed_socket_is_forgotten(web: RunningWeb, viewer: User, deployment: Deployment) -> None:
    with web.socket("chat", viewer) as connection:
        receive(connection)
        assert len(web.collector.viewers) == 1
    wait_until(lambda: web.collector.viewers == [], "no viewer is left")


def test_a_new_process_shows_the_last_minutes(valkey: "redis.Redis", viewer: User, deployment: Deployment) -> None:
    dot: Any = {"type": "ttft", "t": 1e10, "request_id": "before the start"}
    bus.publish(deployment.pk, [dot])
    with RunningWeb() as web:
        wait_until(lambda: web.collector.channel(deployment.pk).seq > 0, "the stream has been read")
        with web.socket("chat", viewer) as connection:
            assert receive(connection)["ttft"] == [dot]
