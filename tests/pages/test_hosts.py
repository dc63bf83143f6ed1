"""Hosts: heartbeats, what they hold, joining one, and maintenance."""

import re
from datetime import timedelta

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.fleet.models import Deployment, Engine, Gpu, Host, Server
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


def test_a_host_of_simulated_servers_only_is_said_to_need_no_vllm(fleet: Fleet, viewer: Client) -> None:
    Host.objects.update(inventory={"engines": {"vllm": None, "nixl": None, "path": None}})
    page = viewer.get("/hosts/gpu01/").text
    assert "not found, and not needed: the simulated engine is part of this product" in page
    assert "prefill and decode servers need it" not in page
    assert "the agent's own environment" in page
    Deployment.objects.update(engine=Engine.VLLM)
    assert "prefill and decode servers need it" in viewer.get("/hosts/gpu01/").text


def test_more_hosts_cost_no_more_queries(fleet: Fleet, viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            viewer.get("/hosts/")
        return len(seen)

    few = queries()
    for _ in range(4):
        make_host()
    assert queries() == few


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


def test_hosts_stand_in_one_order_everywhere(fleet: Fleet, viewer: Client) -> None:
    for name in ("gpu03", "gpu00", "gpu02"):
        make_host(name)
    for page in (viewer.get("/").text, viewer.get("/hosts/").text):
        assert re.findall(r"<strong>(gpu\d+)</strong>", page) == ["gpu00", "gpu01", "gpu02", "gpu03"]


def test_maintenance_is_told_once(fleet: Fleet, admin: Client) -> None:
    page = admin.post("/hosts/gpu01/maintenance/", {"on": "1"}, follow=True).text
    assert page.count("nothing new is launched") == 1
