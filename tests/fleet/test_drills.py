"""Drills: asked of the host once, on simulated servers that are ready, by somebody who may."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.models import AuditEntry, Role
from console.fleet import actions, drills
from console.fleet.errors import Conflict, Forbidden
from console.fleet.models import Server
from console.fleet.states import ServerRole, ServerState
from tests.api.calls import Api
from tests.factories import OPERATOR, VIEWER, make_deployment, make_host, make_server, make_user
from tests.sent import Sent

pytestmark = pytest.mark.django_db(transaction=True)
S = ServerState


def test_the_host_is_asked_once_and_it_stands_in_the_audit_trail(sent: Sent) -> None:
    server = make_server(ServerRole.PREFILL, S.READY)
    actions.drill(server.pk, OPERATOR, "friday exercise")
    assert sent == [("agent.drill", [server.pk, 1, "olga"], server.own_host.queue)]
    entry = AuditEntry.objects.get(action="server.drill")
    assert (entry.actor, entry.target, entry.reason) == ("olga", f"server {server.name}", "friday exercise")


def test_a_viewer_holds_no_drill(sent: Sent) -> None:
    with pytest.raises(Forbidden):
        actions.drill(make_server(state=S.READY).pk, VIEWER)
    assert sent == []


def test_real_engines_are_refused(sent: Sent) -> None:
    server = make_server(state=S.READY, deployment=make_deployment(engine="vllm"))
    with pytest.raises(Conflict, match="on simulated servers only"):
        actions.drill(server.pk, OPERATOR)
    assert sent == []
    assert not AuditEntry.objects.exists()


def test_what_it_was_started_as_counts_not_what_the_deployment_became(sent: Sent) -> None:
    server = make_server(state=S.READY, launch_spec={"engine": "vllm"})
    with pytest.raises(Conflict, match="on simulated servers only"):
        actions.drill(server.pk, OPERATOR)


@pytest.mark.parametrize("state", [S.STOPPED, S.LOADING, S.DRAINING, S.FAILED])
def test_only_a_ready_server_is_drilled(state: ServerState, sent: Sent) -> None:
    with pytest.raises(Conflict, match="A drill is held on a ready server"):
        actions.drill(make_server(state=state).pk, OPERATOR)


def test_a_silent_host_is_refused(sent: Sent) -> None:
    host = make_host(last_seen_at=timezone.now() - timedelta(minutes=2))
    with pytest.raises(Conflict, match="does not report"):
        actions.drill(make_server(state=S.READY, host=host).pk, OPERATOR)


def test_an_adopted_server_is_refused(sent: Sent) -> None:
    theirs = Server(deployment=make_deployment(), name="theirs", role="plain", state=S.READY, adopted_url="http://a:1")
    theirs.save()
    with pytest.raises(Conflict, match="no simulated server of ours"):
        actions.drill(theirs.pk, OPERATOR)


def test_it_says_beforehand_what_will_happen() -> None:
    deployment = make_deployment()
    prefill = make_server(ServerRole.PREFILL, S.READY, deployment)
    assert "only ready server" in drills.consequences(prefill)[-1]
    decode = make_server(ServerRole.DECODE, S.READY, deployment)
    assert "Streams that run on it break off" in drills.consequences(decode)[1]
    assert "last ready decode server" in drills.consequences(decode)[-1]
    assert "Streams on decode servers go on" in drills.consequences(prefill)[1]


def test_the_page_asks_first_and_then_does_it(client: Client, valkey: object, sent: Sent) -> None:
    client.force_login(make_user(Role.OPERATOR))
    server = make_server(ServerRole.DECODE, S.READY)
    assert f"/servers/{server.pk}/drill/" in client.get(f"/servers/{server.pk}/").text
    asked = client.get(f"/servers/{server.pk}/drill/").text
    assert "killed without warning" in asked
    assert sent == []
    assert "is being killed" in client.post(f"/servers/{server.pk}/drill/", follow=True).text
    assert [task for task, _, _ in sent] == ["agent.drill"]


def test_the_page_of_a_real_engine_offers_none(client: Client, valkey: object, sent: Sent) -> None:
    client.force_login(make_user(Role.OPERATOR))
    server = make_server(state=S.READY, deployment=make_deployment(engine="vllm"))
    assert "drill" not in client.get(f"/servers/{server.pk}/").text
    answer = client.post(f"/servers/{server.pk}/drill/")
    assert (answer.status_code, sent) == (409, [])
    assert "on simulated servers only" in answer.text


def test_over_rest_it_is_rehearsed_and_held(valkey: object, sent: Sent) -> None:
    server, olga = make_server(state=S.READY), Api(Role.OPERATOR)
    assert olga.post(f"/servers/{server.pk}/drill", {"dry_run": True}).status == 202
    assert sent == []
    assert olga.post(f"/servers/{server.pk}/drill", {"reason": "friday"}).status == 202
    assert [task for task, _, _ in sent] == ["agent.drill"]
