"""What the demo's filling decides and leaves behind; the whole journey is in test_whole_demo."""

import json
import stat
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from django.utils import timezone

from console.accounts import people
from console.accounts.models import ApiToken, User
from console.demo import seed
from console.demo.plans import simulated
from console.demo.seed import (
    DemoFile,
    ensure_admin,
    fresh_key,
    fresh_token,
    read_known,
    still_valid,
    to_start,
    write_demo_file,
)
from console.fleet.models import Deployment, Host, Server
from console.fleet.states import ServerState
from console.gateway import loads
from console.gateway.loads import RouterInfo
from tests.factories import make_deployment, make_host, make_user

DEMO: DemoFile = {
    "url": "http://127.0.0.1:8000",
    "username": "admin",
    "password": "correct horse battery",
    "api_token": "syt-1",
    "inference_key": "syk-1",
    "deployment": "demo",
    "model": "demo",
    "engine": "simulated",
}


def server(state: ServerState, generation: int = 1) -> Server:
    return Server(state=state, generation=generation)


def test_servers_that_never_ran_are_started() -> None:
    new, ready = server(ServerState.STOPPED, generation=0), server(ServerState.READY)
    assert to_start([new, ready]) == [new]


def test_servers_that_ended_with_the_last_demo_are_started() -> None:
    ended, ready = server(ServerState.FAILED), server(ServerState.READY)
    assert to_start([ended, ready]) == [ended]


def test_a_server_that_a_person_stopped_stays_stopped() -> None:
    assert to_start([server(ServerState.STOPPED), server(ServerState.READY)]) == []


def test_all_are_started_when_none_is_up() -> None:
    resting = [server(ServerState.STOPPED), server(ServerState.STOPPED)]
    assert to_start(resting) == resting


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    write_demo_file(path, DEMO)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == DEMO
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_last_run_told_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    write_demo_file(path, DEMO)
    assert read_known(path) == ("correct horse battery", "syt-1", "syk-1")


@pytest.mark.parametrize("content", ["", "[]", "{}", "{"])
def test_a_broken_file_tells_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "demo.json"
    path.write_text(content)
    assert read_known(path) == ("", "", "")


@pytest.mark.django_db
def test_the_first_run_makes_an_admin_who_can_log_in() -> None:
    user, password = ensure_admin("")
    assert user.username == "admin"
    assert User.objects.get(username="admin").check_password(password)


@pytest.mark.django_db
def test_a_later_run_keeps_the_admins_password() -> None:
    _, first = ensure_admin("")
    _, second = ensure_admin(first)
    assert second == first


@pytest.mark.django_db
def test_an_admin_whose_password_is_not_known_gets_a_new_one() -> None:
    ensure_admin("")
    user, password = ensure_admin("something else")
    assert User.objects.get(pk=user.pk).check_password(password)


@pytest.mark.django_db
def test_a_token_that_is_known_and_counts_stays() -> None:
    user = make_user()
    plain = fresh_token(user)
    assert still_valid(user.tokens.all(), plain) == plain
    fresh_token(user)
    assert still_valid(user.tokens.all(), plain) == ""


@pytest.mark.django_db
def test_a_key_of_another_deployment_does_not_stay() -> None:
    plain = fresh_key(make_deployment())
    assert still_valid(make_deployment().inference_keys.all(), plain) == ""


@pytest.mark.django_db
def test_each_run_ends_the_token_of_the_one_before() -> None:
    user = make_user()
    fresh_token(user)
    fresh_token(user)
    assert [token.is_valid() for token in ApiToken.objects.order_by("id")] == [False, True]


@pytest.mark.django_db
def test_each_run_ends_the_key_of_the_one_before() -> None:
    deployment = make_deployment()
    fresh_key(deployment)
    fresh_key(deployment)
    assert [key.is_valid() for key in deployment.inference_keys.order_by("id")] == [False, True]


@pytest.mark.django_db
def test_it_says_when_no_agent_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed, "HOST_LIMIT_S", 0.0)
    with pytest.raises(seed.SeedFailed, match="The agent of host nowhere did not report"):
        seed.wait_for_host("nowhere", since=0.0, begun_at=timezone.now())


@pytest.mark.django_db
def test_what_a_host_reported_before_a_restart_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed, "HOST_LIMIT_S", 0.0)
    begun_at = timezone.now()
    make_host(name="gpu01", address="gpu01", last_seen_at=begun_at - timedelta(seconds=1))
    with pytest.raises(seed.SeedFailed, match="The agent of host gpu01 did not report"):
        seed.wait_for_host("gpu01", since=None, begun_at=begun_at)


@pytest.mark.parametrize("served", [[], [7, 6]])
def test_it_says_when_a_router_does_not_serve_what_is_there(monkeypatch: pytest.MonkeyPatch, served: list[int]) -> None:
    monkeypatch.setattr(seed, "ROUTERS_LIMIT_S", 0.0)
    monkeypatch.setattr(loads, "routers", lambda: [RouterInfo("a", epoch, 0.0) for epoch in served])
    with pytest.raises(seed.SeedFailed, match="No router serves the demo's servers"):
        seed.wait_until_routers_serve(7)


def test_it_waits_until_every_router_serves_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = iter([[], [6, 7], [7, 8]])
    monkeypatch.setattr(loads, "routers", lambda: [RouterInfo("a", epoch, 0.0) for epoch in next(reports)])
    seed.wait_until_routers_serve(7)
    assert list(reports) == []


@pytest.mark.django_db
def test_servers_of_each_role_are_spread_over_the_hosts() -> None:
    deployment = seeded("gpu01", "gpu02")
    placed = deployment.servers.order_by("id").values_list("role", "host__name")
    assert list(placed) == [("prefill", "gpu01"), ("prefill", "gpu02"), ("decode", "gpu01"), ("decode", "gpu02")]


@pytest.mark.django_db
def test_a_deployment_that_is_there_stays_as_it_is() -> None:
    deployment = seeded("gpu01")
    deployment.servers.order_by("id")[0].delete()
    seeded("gpu02")
    assert list(deployment.servers.values_list("host__name", flat=True)) == ["gpu01"] * 3


@pytest.mark.django_db
def test_a_filling_that_broke_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.fleet.actions.add_server", Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        seeded("gpu01")
    assert not Deployment.objects.exists()


def seeded(*host_names: str) -> Deployment:
    """The demo's deployment on hosts that are made where they are missing."""
    known = {host.name: host for host in Host.objects.filter(name__in=host_names)}
    hosts = [known.get(name) or make_host(name=name, gpus=4) for name in host_names]
    return seed.ensure_deployment(simulated(), people.COMMAND_LINE, hosts)[0]
