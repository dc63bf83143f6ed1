"""Hosts: heartbeats, what they hold, joining one, and maintenance."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.fleet.models import Gpu, Host, Server
from tests.factories import make_host
from tests.pages.conftest import Fleet


def test_without_a_host_the_list_shows_the_command(valkey: object, db: None, viewer: Client) -> None:
    assert "python manage.py agent --name gpu01" in viewer.get("/hosts/").text


def test_a_host_tells_its_heartbeat_gpus_and_versions(fleet: Fleet, viewer: Client) -> None:
    inventory = {"engines": {"vllm": "0.31.0", "nixl": None, "nixl_pinned": "1.4.1", "path": "/opt/vllm"}}
    Host.objects.update(inventory=inventory)
    Gpu.objects.filter(index=0).update(memory_used_mib=40960, power_w=300)
    page = viewer.get("/hosts/").text
    for words in ("4 × Simulated GPU", "40.0 GiB of 320.0 GiB", "300 W", "0.31.0", "not found"):
        assert words in page


def test_a_silent_host_says_that_its_servers_are_left_alone(fleet: Fleet, viewer: Client) -> None:
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=7))
    make_host("gpu02")
    assert "silent for 7 min" in viewer.get("/hosts/").text
    assert "Its servers are left alone" in viewer.get("/hosts/gpu01/").text


def test_all_hosts_silent_at_once_points_at_the_console(fleet: Fleet, viewer: Client) -> None:
    Host.objects.update(last_seen_at=timezone.now() - timedelta(minutes=7))
    assert "Every host is silent at once." in viewer.get("/hosts/").text


def test_a_host_that_never_reported_waits_for_its_agent(fleet: Fleet, viewer: Client) -> None:
    make_host("gpu09", gpus=0, last_seen_at=None, address="", inventory={})
    assert "Waiting for its agent" in viewer.get("/hosts/").text
    assert "Its agent has not reported yet." in viewer.get("/hosts/gpu09/").text


def test_a_gpu_tells_whose_servers_and_processes_are_on_it(fleet: Fleet, viewer: Client) -> None:
    Gpu.objects.filter(index=3).update(holders=[{"pid": 4242, "name": "train.py", "memory_mib": 2048}])
    page = viewer.get("/hosts/gpu01/").text
    assert "train.py (4242) 2.0 GiB" in page
    assert "chat-1" in page


def test_another_nixl_than_vllm_asks_for_is_pointed_out(fleet: Fleet, viewer: Client) -> None:
    engines = {"vllm": "0.31.0", "nixl": "1.0.0", "nixl_pinned": "1.4.1", "path": "/opt/vllm"}
    Host.objects.update(inventory={"engines": engines})
    assert "vLLM asks for 1.4.1" in viewer.get("/hosts/gpu01/").text


def test_more_hosts_cost_no_more_queries(fleet: Fleet, viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            viewer.get("/hosts/")
        return len(seen)

    few = queries()
    for _ in range(4):
        make_host()
    assert queries() == few


def test_joining_a_host_takes_one_command_with_the_password_covered(fleet: Fleet, admin: Client, settings: Any) -> None:
    settings.REDIS_URL = "redis://:hunter2@10.0.0.1:6379/0"
    page = admin.get("/hosts/new/", {"name": "gpu07"}).text
    assert "agent --name gpu07 --broker" in page
    shown = page.split('data-masked="')[1]
    assert "hunter2" not in shown
    assert "treat it like a root password" in page


def test_a_broker_on_this_machine_is_pointed_out(fleet: Fleet, admin: Client, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:6379/0"
    assert "The broker listens on this machine only" in admin.get("/hosts/new/").text
    settings.REDIS_URL = "redis://10.0.0.1:6379/0"
    assert "The broker listens on this machine only" not in admin.get("/hosts/new/").text


def test_a_host_can_be_named_beforehand(fleet: Fleet, admin: Client) -> None:
    answer = admin.post("/hosts/new/", {"name": "gpu07"})
    assert answer.headers["Location"] == "/hosts/new/?name=gpu07"
    assert Host.objects.get(name="gpu07").last_seen_at is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "This field is required."),
        ("GPU 1", "Use lower-case letters, digits and hyphens"),
        ("gpu01", "There is a host gpu01 already."),
    ],
)
def test_a_name_that_will_not_do_is_answered_at_its_field(name: str, message: str, fleet: Fleet, admin: Client) -> None:
    answer = admin.post("/hosts/new/", {"name": name})
    assert answer.status_code == 400
    assert message in answer.text


def test_maintenance_is_switched_on_and_off(fleet: Fleet, admin: Client) -> None:
    admin.post("/hosts/gpu01/maintenance/", {"on": "1"})
    assert Host.objects.get().maintenance
    assert "nothing new is launched here" in admin.get("/hosts/gpu01/").text
    admin.post("/hosts/gpu01/maintenance/", {"on": "0"})
    assert not Host.objects.get().maintenance


def test_a_host_with_servers_is_not_removed(fleet: Fleet, admin: Client) -> None:
    answer = admin.post("/hosts/gpu01/remove/", follow=True)
    assert "Delete them, then remove the host." in answer.text
    assert Host.objects.filter(name="gpu01").exists()


def test_an_empty_host_is_removed(fleet: Fleet, admin: Client) -> None:
    make_host("gpu02")
    admin.post("/hosts/gpu02/remove/")
    assert not Host.objects.filter(name="gpu02").exists()


def test_emptying_a_host_tells_what_ends_and_what_traffic_loses(fleet: Fleet, operator: Client) -> None:
    page = operator.get("/hosts/gpu01/drain/").text
    assert "chat-1, chat-2" in page
    assert "chat has no ready server elsewhere: its requests fail." in page


def test_emptying_a_host_takes_a_confirmation_when_traffic_loses_something(fleet: Fleet, operator: Client) -> None:
    refused = operator.post("/hosts/gpu01/drain/")
    assert refused.status_code == 409
    assert "Confirm it to go ahead." in refused.text
    assert not Host.objects.get().maintenance
    operator.post("/hosts/gpu01/drain/", {"confirmed": "on", "reason": "new fans"})
    assert Host.objects.get().maintenance
    assert set(Server.objects.exclude(state="stopped").values_list("state", flat=True)) == {"draining"}
