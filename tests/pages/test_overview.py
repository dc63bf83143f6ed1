"""The first page: what is served, how it goes, and what to do next when there is nothing."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.fleet.models import Host
from console.fleet.pages.overview import summaries
from console.fleet.states import ServerRole, ServerState
from tests.factories import make_deployment, make_host, make_server
from tests.pages.conftest import Fleet, make_record

pytestmark = pytest.mark.django_db


def test_without_a_host_it_shows_the_command_that_joins_one(valkey: object, admin: Client) -> None:
    page = admin.get("/").text
    assert "No host has joined yet" in page
    assert "python manage.py agent --name gpu01 --console http://testserver" in page


def test_the_brokers_password_is_not_there(valkey: object, viewer: Client, settings: object) -> None:
    settings.REDIS_URL = "redis://:hunter2@10.0.0.1:6379/0"  # type: ignore[attr-defined]
    page = viewer.get("/").text
    assert "hunter2" not in page


def test_with_a_host_and_no_deployment_it_says_what_comes_next(valkey: object, operator: Client) -> None:
    make_host()
    page = operator.get("/").text
    assert "1 host ready, nothing deployed" in page
    assert "Add a deployment" in page


def test_a_viewer_gets_no_button_that_changes_something(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get("/").text
    assert "Add a deployment" not in page
    assert "Add a host" not in page


def test_a_deployment_shows_its_mode_and_its_servers(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get("/").text
    assert 'data-mode="fallback"' in page
    for name in ("chat-1", "chat-2", "chat-3"):
        assert name in page


def test_a_silent_host_is_said_to_be_silent(fleet: Fleet, viewer: Client) -> None:
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=5))
    page = viewer.get("/").text
    assert "Silent" in page
    assert "last heard 5 min" in page


def test_a_failure_is_told_with_its_reason(fleet: Fleet, viewer: Client) -> None:
    fleet.stopped.failure = {"code": "x", "message": "NIXL is not available.", "instruction": "Install it."}
    fleet.stopped.save(update_fields=["failure"])
    assert "chat-3: NIXL is not available." in viewer.get("/").text


def test_the_numbers_are_of_the_requests_of_the_window(fleet: Fleet) -> None:
    make_record(fleet.deployment, None, fleet.decode, "req-2", first_token_ms=50.0, max_gap_ms=20.0)
    make_record(fleet.deployment, None, fleet.decode, "old", received_at=timezone.now() - timedelta(minutes=2))
    now = timezone.now()
    [summary] = summaries(now - timedelta(minutes=1), now)
    assert summary.requests_per_min == 2
    assert (summary.ttft_p50_ms, summary.ttft_p99_ms) == (50.0, 150.0)
    assert summary.worst_gap_ms == 300.0


def test_more_deployments_and_servers_cost_no_more_queries(fleet: Fleet, viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            viewer.get("/")
        return len(seen)

    few = queries()
    for _ in range(3):
        deployment, host = make_deployment(), make_host()
        for role in (ServerRole.PREFILL, ServerRole.DECODE):
            make_server(role, ServerState.READY, deployment, host)
    assert queries() == few
