"""Every committed change of a server, a pair or a move reaches the browsers of its deployment."""

from typing import Any

import orjson
import pytest
import redis
from django.db import transaction
from pytest_django import Settings

from console.fleet import signals
from console.fleet.models import Move, Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from console.live import bus
from console.live.publish import tell_server
from tests.factories import make_deployment, make_server

pytestmark = pytest.mark.django_db(transaction=True)


def told(client: "redis.Redis") -> list[tuple[int, dict[str, Any]]]:
    """Deployment id and event of everything that was published."""
    entries: Any = client.xrange(bus.stream())
    return [(int(fields[b"d"]), event) for _, fields in entries for event in orjson.loads(fields[b"e"])]


def test_a_transition_publishes_the_servers_card(valkey: "redis.Redis") -> None:
    server = make_server(state=ServerState.READY)
    server.transition(ServerState.DRAINING)
    [(deployment_id, event)] = told(valkey)
    assert deployment_id == server.deployment_id
    assert (event["type"], event["server"]["id"], event["server"]["state"]) == ("server", server.pk, "draining")


def test_nothing_is_told_before_the_commit_and_nothing_after_a_rollback(valkey: "redis.Redis") -> None:
    server = make_server(state=ServerState.READY)
    with transaction.atomic():
        server.transition(ServerState.DRAINING)
        assert told(valkey) == []
        transaction.set_rollback(True)
    assert told(valkey) == []


def test_two_changes_in_one_transaction_both_show_the_last_state(valkey: "redis.Redis") -> None:
    server = make_server(state=ServerState.READY)
    with transaction.atomic():
        server.transition(ServerState.DRAINING)
        server.transition(ServerState.STOPPING)
    assert {event["server"]["state"] for _, event in told(valkey)} == {"stopping"}


def test_a_pairs_verification_publishes_both_cards(valkey: "redis.Redis") -> None:
    deployment = make_deployment()
    prefill = make_server(ServerRole.PREFILL, ServerState.READY, deployment)
    decode = make_server(ServerRole.DECODE, ServerState.READY, deployment)
    pair = Pair.objects.create(prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1)
    signals.pair_changed.send(sender=Pair, pair=pair)
    assert [event["server"]["id"] for _, event in told(valkey)] == [prefill.pk, decode.pk]


def test_a_servers_card_comes_with_what_requests_meet_now(valkey: "redis.Redis") -> None:
    deployment = make_deployment()
    prefill = make_server(ServerRole.PREFILL, ServerState.READY, deployment)
    decode = make_server(ServerRole.DECODE, ServerState.READY, deployment)
    tell_server(decode.pk)
    Pair.objects.create(
        prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1, state=PairState.VERIFIED
    )
    tell_server(decode.pk)
    prefill.transition(ServerState.DRAINING)
    assert [event["mode"] for _, event in told(valkey)] == ["fallback", "split", "fallback"]


def test_a_move_publishes_its_card(valkey: "redis.Redis") -> None:
    server = make_server(ServerRole.PREFILL, ServerState.READY)
    move = Move.objects.create(server=server, deployment=server.deployment, from_role="prefill", to_role="decode")
    signals.move_changed.send(sender=Move, move=move)
    [(deployment_id, event)] = told(valkey)
    assert (deployment_id, event["type"], event["move"]["id"]) == (server.deployment_id, "move", move.pk)


def test_a_removed_server_is_told_by_its_number(valkey: "redis.Redis") -> None:
    signals.server_removed.send(sender=Server, server_id=4, deployment_id=7)
    assert told(valkey) == [(7, {"type": "server_removed", "id": 4})]


def test_a_server_that_is_gone_at_the_commit_is_not_told(valkey: "redis.Redis") -> None:
    server = make_server(state=ServerState.STOPPED)
    with transaction.atomic():
        signals.server_changed.send(sender=Server, server=server, old_state=ServerState.STOPPED)
        Server.objects.all().delete()
    assert told(valkey) == []


def test_the_change_stands_when_telling_fails(settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    server = make_server(state=ServerState.READY)
    assert server.transition(ServerState.DRAINING)
    assert Server.objects.get(pk=server.pk).state == ServerState.DRAINING


def test_new_settings_publish_the_cards_of_the_servers_that_run_on_older_ones(valkey: "redis.Redis") -> None:
    deployment = make_deployment(revision=2)
    behind = make_server(state=ServerState.READY, deployment=deployment, revision=1)
    make_server(state=ServerState.READY, deployment=deployment, revision=2)
    signals.deployment_changed.send(sender=type(deployment), deployment=deployment)
    [(_, event)] = told(valkey)
    assert event["server"]["id"] == behind.pk
    assert event["server"]["degradations"][0]["code"] == "older_settings"
