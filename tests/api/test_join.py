"""`POST /api/join` from the console's side: who is let in, what is handed out, and what is refused in which words."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.cache import cache
from django.test import override_settings

from console.accounts.models import HostLogin, JoinToken, digest
from console.fleet.models import Host
from console.launch import logins
from tests.api.calls import Answer, Api
from tests.factories import make_host

pytestmark = pytest.mark.django_db
SECRET = hashlib.sha256(b"secret").hexdigest()
OTHER_SECRET = hashlib.sha256(b"other").hexdigest()


@pytest.fixture(autouse=True)
def clean(valkey: "redis.Redis") -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()
    logins.keep({})


@pytest.fixture
def plain() -> str:
    return JoinToken.issue("ada", "rack 1")[1]


def join(plain: str, name: str = "gpu01", secret: str = SECRET, caller: str = "127.0.0.1") -> Answer:
    api = Api(Authorization=f"Bearer {plain}")
    api.client.defaults["REMOTE_ADDR"] = caller
    return api.post("/join", {"name": name, "secret_sha256": secret})


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.error["code"]


def test_a_machine_is_let_in_and_told_the_broker_without_any_password(plain: str) -> None:
    answer = join(plain)
    assert (answer.status, answer.body["username"], answer.body["prefix"]) == (
        200,
        "switchyard-host-gpu01",
        "switchyard",
    )
    assert "@" not in answer.body["broker"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert HostLogin.objects.get(host__name="gpu01").hashed == SECRET


def test_asking_again_with_the_same_secret_gets_the_same_answer(plain: str) -> None:
    assert join(plain).body == join(plain).body


def test_another_secret_with_a_used_token_is_refused(plain: str) -> None:
    join(plain)
    assert refused(join(plain, "gpu02", OTHER_SECRET)) == (401, "token_used")
    assert not Host.objects.filter(name="gpu02").exists()


def test_a_token_for_many_machines_lets_many_in() -> None:
    _, plain = JoinToken.issue("ada", "rack 1", single_use=False)
    assert join(plain).status == join(plain, "gpu02", OTHER_SECRET).status == 200


def test_a_token_for_one_name_may_replace_that_host_and_no_other(plain: str) -> None:
    join(plain)
    _, for_gpu01 = JoinToken.issue("ada", "again", host_name="gpu01")
    assert refused(join(for_gpu01, "gpu02", OTHER_SECRET)) == (403, "other_host")
    assert join(for_gpu01, "gpu01", OTHER_SECRET).status == 200
    assert HostLogin.objects.get(host__name="gpu01").hashed == OTHER_SECRET


def test_a_host_that_reports_by_the_brokers_password_keeps_its_name(plain: str) -> None:
    make_host("gpu01")
    assert refused(join(plain)) == (409, "name_taken")
    assert JoinToken.objects.get().is_valid()


def test_an_api_token_is_no_join_token() -> None:
    assert refused(join("syt-nothing")) == (401, "token_unknown")
    assert refused(Api().post("/join", {})) == (401, "not_logged_in")


def test_wrong_tokens_are_throttled_for_one_machine_alone(plain: str) -> None:
    codes = [join("syj-wrong").status for _ in range(11)]
    assert codes == [401] * 10 + [429]
    assert join(plain).headers["Retry-After"] == "60"
    assert join(plain, caller="127.0.0.9").status == 200


@pytest.mark.parametrize("body", [None, b"{", [], {"name": "gpu01"}, {"name": "GPU 1", "secret_sha256": SECRET},
                                  {"name": "gpu01", "secret_sha256": "short"}])  # fmt: skip
def test_a_body_that_cannot_be_meant_lets_nobody_in(body: Any, plain: str) -> None:
    assert Api(Authorization=f"Bearer {plain}").post("/join", body).status == 400
    assert not Host.objects.exists()


def test_only_a_post_joins(plain: str) -> None:
    assert Api(Authorization=f"Bearer {plain}").get("/join").status == 405


class TestBrokersAddress:
    """REDIS_URL of the tests is a loopback address."""

    def test_another_machine_is_told_how_to_open_a_broker_that_listens_on_loopback_only(self, plain: str) -> None:
        answer = join(plain, caller="192.0.2.7")
        assert refused(answer) == (409, "broker_not_open")
        assert "manage.py up --bind ADDRESS" in answer.error["message"]
        assert JoinToken.objects.get().is_valid()

    @override_settings(VALKEY_BIND="0.0.0.0")
    def test_an_opened_broker_is_reached_by_the_consoles_name(self, plain: str) -> None:
        assert "redis://testserver:" in join(plain, caller="192.0.2.7").body["broker"]

    @override_settings(VALKEY_BIND="10.0.0.5")
    def test_an_opened_broker_is_reached_where_it_listens(self, plain: str) -> None:
        assert "redis://10.0.0.5:" in join(plain, caller="192.0.2.7").body["broker"]

    @override_settings(BROKER_PUBLIC_URL="rediss://broker.example.org:6380/2")
    def test_a_public_address_goes_before_all(self, plain: str) -> None:
        assert join(plain, caller="192.0.2.7").body["broker"] == "rediss://broker.example.org:6380/2"


@pytest.fixture
def stubborn_broker(valkey: "redis.Redis") -> Iterator[None]:
    """A broker that gives the console a login without the right to make others."""
    password = valkey.connection_pool.connection_kwargs["password"]
    port = valkey.connection_pool.connection_kwargs["port"]
    valkey.execute_command("ACL", "SETUSER", "app", "on", f"#{digest(password)}", "~*", "&*", "+@all", "-acl")  # type: ignore[no-untyped-call]
    with override_settings(REDIS_URL=f"redis://app:{password}@127.0.0.1:{port}/0"):
        yield
    valkey.acl_deluser("app")


def test_a_broker_that_keeps_no_logins_lends_the_consoles_own(stubborn_broker: None, plain: str) -> None:
    answer = join(plain)
    assert answer.body["broker"].startswith("redis://app:")
    assert answer.body["username"] == ""
    assert "whoever has it" in answer.body["warning"]
    assert HostLogin.objects.get().is_own is False
    logins.keep({})


def test_a_broker_that_is_away_lets_nobody_in_and_spends_no_token(plain: str) -> None:
    with override_settings(REDIS_URL="redis://127.0.0.1:1/0"):
        assert refused(join(plain)) == (503, "unavailable")
    assert JoinToken.objects.get().is_valid()
