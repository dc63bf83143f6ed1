"""A change that matters to routing raises the epoch in its transaction and is announced after the commit."""

from typing import Any

import pytest
import redis
from django.db import transaction
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from console.fleet import signals
from console.fleet.models import Pair, Server
from console.fleet.states import ServerRole, ServerState
from console.gateway import publish
from console.gateway.models import Epoch
from tests.factories import make_deployment, make_host, make_server
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _published_before() -> None:
    Epoch.bump()


def test_a_transition_raises_the_epoch() -> None:
    server = make_server()
    before = Epoch.current()
    server.transition(ServerState.PENDING)
    assert Epoch.current() == before + 1


def test_a_lost_transition_changes_nothing() -> None:
    server = make_server()
    Server.objects.filter(pk=server.pk).update(state=ServerState.PENDING)
    before = Epoch.current()
    server.transition(ServerState.PENDING)
    assert Epoch.current() == before


def test_new_facts_on_a_card_do_not_concern_the_routers() -> None:
    server = make_server(state=ServerState.READY)
    before = Epoch.current()
    signals.server_changed.send(sender=Server, server=server, old_state=ServerState.READY)
    assert Epoch.current() == before


def test_other_changes_raise_the_epoch() -> None:
    deployment = make_deployment()
    decode = make_server(ServerRole.DECODE, ServerState.READY, deployment)
    prefill = make_server(ServerRole.PREFILL, ServerState.READY, deployment)
    pair = Pair.objects.create(prefill=prefill, decode=decode, prefill_generation=1, decode_generation=1)
    before = Epoch.current()
    signals.deployment_changed.send(sender=type(deployment), deployment=deployment)
    signals.pair_changed.send(sender=Pair, pair=pair)
    signals.host_changed.send(sender=type(decode.host), host=decode.host)
    signals.server_removed.send(sender=Server, server_id=decode.pk, deployment_id=deployment.pk)
    assert Epoch.current() == before + 4


def test_draining_notes_the_epoch_from_which_nothing_new_is_sent() -> None:
    server = make_server(state=ServerState.READY)
    server.transition(ServerState.DRAINING)
    assert server.drain_epoch == Epoch.current()
    assert Server.objects.get(pk=server.pk).drain_epoch == server.drain_epoch


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_change_is_not_published() -> None:
    server = make_server()
    before = Epoch.current()
    with transaction.atomic():
        server.transition(ServerState.PENDING)
        transaction.set_rollback(True)
    assert Epoch.current() == before


def test_routers_are_nudged_after_the_commit(
    valkey: "redis.Redis", django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    listener = valkey.pubsub()  # type: ignore[no-untyped-call]
    listener.subscribe(publish.channel())
    wait_for(lambda: listener.get_message(timeout=1), "the answer that it listens")
    with django_capture_on_commit_callbacks(execute=True):
        epoch = publish.changed()
        assert listener.get_message(timeout=0.05) is None
    message: Any = wait_for(lambda: listener.get_message(timeout=1), "a nudge")
    assert int(message["data"]) == epoch
    listener.close()


def test_a_change_goes_through_while_valkey_is_away(
    settings: Settings,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    host = make_host()
    with django_capture_on_commit_callbacks(execute=True):
        signals.host_changed.send(sender=type(host), host=host)
    assert "routers were not told" in caplog.text
