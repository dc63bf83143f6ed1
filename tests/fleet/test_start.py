"""Starting a server: once, where there is room, by somebody who may."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from console.accounts.models import AuditEntry
from console.fleet import actions
from console.fleet.errors import Conflict, Forbidden, NotFound
from console.fleet.models import Host, Server
from console.fleet.states import HOLDS_GPU, ServerRole, ServerState
from tests.factories import OPERATOR, VIEWER, make_deployment, make_host, make_server
from tests.sent import Sent

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_start_makes_a_new_generation_and_asks_the_host(sent: Sent) -> None:
    server = make_server(ServerRole.PREFILL)
    started = actions.start(server.pk, OPERATOR, "more prefill")
    assert (started.state, started.generation) == (ServerState.PENDING, 1)
    task, (spec,), queue = sent[0]
    assert (task, queue) == ("agent.launch", f"host.{server.own_host.name}")
    assert (spec["server_id"], spec["generation"], spec["api_port"]) == (server.pk, 1, started.api_port)


def test_what_is_stored_and_shown_holds_no_secret(sent: Sent) -> None:
    server = make_server(deployment=make_deployment(server_api_key="very-secret"))
    started = actions.start(server.pk, OPERATOR)
    assert sent[0][1][0]["secret_env"] == {"VLLM_API_KEY": "very-secret"}
    assert "very-secret" not in str(started.launch_spec)


def test_a_start_leaves_its_trace(sent: Sent) -> None:
    server = make_server()
    actions.start(server.pk, OPERATOR, "because")
    entry = AuditEntry.objects.get(action="server.start")
    assert (entry.actor, entry.target, entry.reason) == ("olga", f"server {server.name}", "because")


def test_a_second_start_is_refused_and_says_what_it_is_doing(sent: Sent) -> None:
    server = make_server()
    actions.start(server.pk, OPERATOR)
    with pytest.raises(Conflict, match="on its way up already"):
        actions.start(server.pk, OPERATOR)
    assert len(sent) == 1


def test_of_many_starts_at_once_exactly_one_wins(sent: Sent) -> None:
    server = make_server()
    outcomes: list[str] = []
    gate = threading.Barrier(4)

    def press() -> None:
        gate.wait()
        try:
            actions.start(server.pk, OPERATOR)
            outcomes.append("started")
        except Conflict:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=press) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused", "refused", "refused", "started"]
    assert len(sent) == 1
    assert Server.objects.get(pk=server.pk).generation == 1


def test_two_servers_started_at_once_on_one_host_get_ports_of_their_own(sent: Sent) -> None:
    host = make_host()
    servers = [make_server(host=host, gpu_indexes=[index]) for index in range(3)]
    gate = threading.Barrier(3)

    def press(server_id: int) -> None:
        gate.wait()
        actions.start(server_id, OPERATOR)
        connection.close()

    threads = [threading.Thread(target=press, args=(server.pk,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ports = [port for _, (spec,), _ in sent for port in (spec["api_port"], spec["side_channel_port"])]
    assert len(set(ports)) == 6


def test_a_viewer_cannot_start(sent: Sent) -> None:
    server = make_server()
    with pytest.raises(Forbidden, match="operator role"):
        actions.start(server.pk, VIEWER)
    assert Server.objects.get(pk=server.pk).state == ServerState.STOPPED


def test_a_server_that_is_gone_is_not_found() -> None:
    with pytest.raises(NotFound):
        actions.start(4711, OPERATOR)


@pytest.mark.parametrize("state", sorted(HOLDS_GPU))
def test_a_gpu_held_by_another_server_is_not_shared(state: ServerState, sent: Sent) -> None:
    host = make_host()
    holder = make_server(host=host, gpu_indexes=[1], state=state)
    server = make_server(host=host, gpu_indexes=[0, 1])
    with pytest.raises(Conflict, match=rf"GPU 1 .* is held by {holder.name}"):
        actions.start(server.pk, OPERATOR)
    assert sent == []


def test_a_gpu_that_leftover_processes_hold_is_not_free(sent: Sent) -> None:
    host = make_host()
    make_server(
        host=host,
        gpu_indexes=[1],
        state=ServerState.FAILED,
        observed={"generation": 1, "alive": False, "group_pids": [77]},
    )
    server = make_server(host=host, gpu_indexes=[1])
    with pytest.raises(Conflict, match="is held by"):
        actions.start(server.pk, OPERATOR)


def test_a_server_with_leftovers_of_its_own_says_that_stop_clears_them(sent: Sent) -> None:
    server = make_server(state=ServerState.FAILED, observed={"generation": 1, "alive": False, "group_pids": [77, 78]})
    with pytest.raises(Conflict, match=r"pid 77, 78.*Press Stop"):
        actions.start(server.pk, OPERATOR)


def test_a_failed_server_without_leftovers_starts_again(sent: Sent) -> None:
    server = make_server(state=ServerState.FAILED, failure={"message": "out of memory"})
    started = actions.start(server.pk, OPERATOR)
    assert (started.generation, started.failure) == (2, {})


def test_a_new_start_does_not_listen_where_peers_knew_the_old_one(sent: Sent) -> None:
    server = make_server(state=ServerState.FAILED, side_channel_port=21102, api_port=21101)
    assert actions.start(server.pk, OPERATOR).side_channel_port != 21102


def test_a_host_in_maintenance_takes_no_launch(sent: Sent) -> None:
    server = make_server(host=make_host(maintenance=True))
    with pytest.raises(Conflict, match="in maintenance"):
        actions.start(server.pk, OPERATOR)


def test_a_silent_host_takes_no_launch(sent: Sent) -> None:
    server = make_server(host=make_host(last_seen_at=timezone.now() - timedelta(minutes=2)))
    with pytest.raises(Conflict, match="has not reported for 120 s"):
        actions.start(server.pk, OPERATOR)


def test_a_host_without_free_ports_takes_no_launch(sent: Sent) -> None:
    server = make_server(host=make_host(inventory={"port_range": [21000, 21003], "busy_ports": []}))
    with pytest.raises(Conflict, match=r"No .* ports are free"):
        actions.start(server.pk, OPERATOR)
    assert Server.objects.get(pk=server.pk).state == ServerState.STOPPED


def test_ports_that_the_host_reported_busy_are_left_alone(sent: Sent) -> None:
    server = make_server(host=make_host(inventory={"port_range": [21000, 21199], "busy_ports": [21000, 21001]}))
    assert actions.start(server.pk, OPERATOR).api_port == 21002


def test_the_preview_is_what_a_start_then_sends(sent: Sent) -> None:
    host, deployment = make_host(), make_deployment(server_api_key="very-secret")
    shown = actions.launch_preview(deployment, host, "decode", [2], "chat-1")
    made = actions.add_server(
        OPERATOR, deployment_id=deployment.pk, host_id=host.pk, role="decode", gpu_indexes=[2], name="chat-1"
    )
    stored = actions.start(made.pk, OPERATOR).launch_spec
    assert shown["env"] == stored["env"]
    assert shown["secret_env"] == stored["secret_env"] == {"VLLM_API_KEY": "***"}
    assert len(shown["argv"]) == len(stored["argv"])
    assert Host.objects.count() == 1
