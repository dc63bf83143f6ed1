"""What time alone brings about."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from console.fleet import actions, hosts
from console.fleet.models import Host, Server
from console.fleet.states import ServerRole, ServerState
from console.gateway import loads
from console.launch import tick
from console.launch.hearing import Hearing
from tests.factories import OPERATOR, make_deployment, make_host, make_server
from tests.sent import Sent

pytestmark = pytest.mark.django_db(transaction=True)
S = ServerState


@pytest.fixture(autouse=True)
def _hearing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has listened long enough from its first tick on."""
    monkeypatch.setattr(tick, "hearing", Hearing(limit_s=0.0))


def state_of(server: Server) -> str:
    return Server.objects.get(pk=server.pk).state


def ago(seconds: float) -> datetime:
    return timezone.now() - timedelta(seconds=seconds)


def silent_host() -> Host:
    return make_host(last_seen_at=timezone.now() - timedelta(minutes=2))


@pytest.mark.parametrize("state", [S.STARTING, S.LOADING, S.VERIFYING, S.READY, S.DRAINING])
def test_servers_of_a_silent_host_are_unreachable_and_not_stopped(state: ServerState, sent: Sent) -> None:
    make_host()
    server = make_server(state=state, host=silent_host())
    tick.tick()
    fresh = Server.objects.get(pk=server.pk)
    assert (fresh.state, fresh.state_before_unreachable) == (S.UNREACHABLE, state)
    assert sent == []


def test_when_all_hosts_are_silent_we_suspect_ourselves(sent: Sent) -> None:
    servers = [make_server(state=S.READY, host=silent_host()) for _ in range(3)]
    assert hosts.suspect_ourselves()
    tick.tick()
    assert {state_of(server) for server in servers} == {S.READY}


def test_without_any_host_nobody_is_suspected() -> None:
    assert not hosts.suspect_ourselves()


def test_a_turn_noted_before_the_clock_was_set_back_holds_nothing_up(sent: Sent) -> None:
    server = make_server(state=S.PENDING, state_since=ago(10), check_due_at=ago(-3600), launch_spec={"secret_env": {}})
    tick.tick()
    assert [(task, queue) for task, _, queue in sent] == [("agent.launch", server.own_host.queue)]


def test_a_launch_that_was_lost_is_sent_again_secrets_included(sent: Sent) -> None:
    server = make_server(deployment=make_deployment(server_api_key="very-secret"))
    actions.start(server.pk, OPERATOR)
    Server.objects.update(state_since=ago(6))
    tick.tick()
    tick.tick()
    assert [task for task, _, _ in sent] == ["agent.launch", "agent.launch"]
    assert sent[0][1] == sent[1][1]


def test_a_launch_that_its_host_never_takes_fails_with_an_instruction(sent: Sent) -> None:
    server = make_server(state=S.PENDING, state_since=ago(61))
    tick.tick()
    fresh = Server.objects.get(pk=server.pk)
    assert fresh.state == S.FAILED
    assert "did not start it within 60 s" in fresh.failure["message"]
    assert "press Start" in fresh.failure["instruction"]


def test_a_stop_that_was_lost_is_sent_again(sent: Sent) -> None:
    make_server(state=S.STOPPING, state_since=ago(3600))
    tick.tick()
    tick.tick()
    assert [task for task, _, _ in sent] == ["agent.stop"]


def test_a_stop_that_was_heard_is_not(sent: Sent) -> None:
    make_server(state=S.STOPPING, observed={"stop_requested": True}, state_since=ago(3600))
    tick.tick()
    assert sent == []


def test_a_drained_server_is_ended(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(state=S.READY)
    actions.stop(server.pk, OPERATOR)
    monkeypatch.setattr(loads, "drained", lambda _: False)
    tick.tick()
    assert state_of(server) == S.DRAINING
    monkeypatch.setattr(loads, "drained", lambda _: True)
    tick.tick()
    assert state_of(server) == S.STOPPING
    assert [task for task, _, _ in sent] == ["agent.stop"]


def test_servers_and_pairs_that_are_due_are_checked(sent: Sent) -> None:
    deployment, host = make_deployment(), make_host()
    prefill = make_server(ServerRole.PREFILL, S.READY, deployment, host)
    decode = make_server(ServerRole.DECODE, S.READY, deployment, host)
    newcomer = make_server(ServerRole.DECODE, S.VERIFYING, deployment, host)
    make_server(ServerRole.DECODE, S.READY)
    tick.tick()
    assert sent == [
        ("console.verify", [newcomer.pk, 1], "checks"),
        ("console.verify_pair", [prefill.pk, decode.pk], "checks"),
    ]


def test_a_part_that_fails_does_not_hold_up_the_others(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Server) -> bool:
        raise RuntimeError("broken")

    make_server(state=S.DRAINING)
    make_server(state=S.STOPPING, state_since=ago(3600))
    monkeypatch.setattr(loads, "drained", broken)
    tick.tick()
    assert [task for task, _, _ in sent] == ["agent.stop"]
