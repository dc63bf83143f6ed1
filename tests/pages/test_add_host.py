"""The page that adds a host: one command with a token shown once, the host as it appears, and tokens taken back."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from console.accounts.models import HostLogin, JoinToken
from console.fleet.models import Host
from console.launch import logins
from tests.factories import make_host

pytestmark = pytest.mark.django_db
NEW = "/hosts/new/"
AS_REGION = {"HX-Request": "true"}
COMMAND = re.compile(r"python manage\.py agent --name (\S+) --console (\S+) --token (syj-[\w-]+)")


@pytest.fixture(autouse=True)
def no_logins(valkey: "redis.Redis") -> Iterator[None]:
    yield
    logins.keep({})


def make(admin: Client, **fields: str) -> str:
    """The page with the command."""
    terms = {"name": "rack 1", "host_name": "", "expires_in_days": "1", "machines": "one", **fields}
    answer = admin.post(NEW, terms)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def joined(token: JoinToken, **fields: Any) -> Host:
    host = make_host("gpu01", **fields)
    HostLogin.objects.create(host=host, token=token, name="gpu01", prefix="1", hashed="1")
    return host


def test_the_command_is_shown_once_with_the_address_of_this_page(admin: Client) -> None:
    shown = COMMAND.search(make(admin, host_name="gpu07"))
    assert shown
    assert shown.group(1, 2) == ("gpu07", "http://testserver")
    assert shown[3] not in admin.get(f"{NEW}?token={JoinToken.objects.get().pk}").text


def test_a_public_address_stands_in_the_command(admin: Client) -> None:
    with override_settings(PUBLIC_URL="https://switchyard.example.org/"):
        shown = COMMAND.search(make(admin))
    assert shown
    assert shown[2] == "https://switchyard.example.org"


def test_no_browser_stores_the_page_with_the_token(admin: Client) -> None:
    answer = admin.post(NEW, {"name": "rack 1", "expires_in_days": "1", "machines": "many"})
    assert answer.headers["Cache-Control"] == "no-store"
    assert not JoinToken.objects.get().single_use


def test_a_double_click_makes_one_token(admin: Client) -> None:
    make(admin, once="abc")
    again = admin.post(NEW, {"name": "rack 1", "expires_in_days": "1", "machines": "one", "once": "abc"})
    assert (again.status_code, "was sent already" in again.text, JoinToken.objects.count()) == (400, True, 1)


def test_a_name_that_no_host_can_have_is_refused_at_its_field(admin: Client) -> None:
    answer = admin.post(NEW, {"name": "x", "host_name": "GPU 1", "machines": "one"})
    assert (answer.status_code, "Use lower-case letters" in answer.text) == (400, True)
    assert not JoinToken.objects.exists()


def test_a_host_that_joined_appears_by_itself_and_by_a_reload(admin: Client) -> None:
    make(admin)
    token = JoinToken.objects.get()
    region = reverse("hosts_joined", args=[token.pk])
    assert "Nobody yet" in admin.get(region, headers=AS_REGION).text
    assert region in make(admin, name="another").replace(str(token.pk + 1), str(token.pk))
    engines = {"vllm": "0.31.0", "nixl": None}
    joined(token, inventory={"engines": engines, "addresses": ["10.0.0.7"]}, address="10.0.0.7")
    for address in (region, f"{NEW}?token={token.pk}"):
        page = admin.get(address, headers=AS_REGION).text
        assert all(words in page for words in ("gpu01", "10.0.0.7", "0.31.0", "4 × Simulated GPU"))


def test_the_list_of_tokens_shows_by_itself_who_has_joined(admin: Client) -> None:
    page = make(admin)
    assert 'id="tokens-region" data-poll hx-get="/hosts/join-tokens/"' in page
    assert "nobody" in admin.get("/hosts/join-tokens/", headers=AS_REGION).text
    joined(JoinToken.objects.get())
    shown = admin.get("/hosts/join-tokens/", headers=AS_REGION).text
    assert '<a href="/hosts/gpu01/">gpu01</a>' in shown
    assert "<main" not in shown


def test_a_token_that_is_void_says_that_nobody_will_come(admin: Client) -> None:
    make(admin)
    JoinToken.objects.update(revoked_at=timezone.now())
    region = reverse("hosts_joined", args=[JoinToken.objects.get().pk])
    assert "nobody will" in admin.get(region, headers=AS_REGION).text


def test_a_token_is_taken_back_by_an_admin_only(admin: Client, operator: Client) -> None:
    make(admin)
    address = reverse("join_token_revoke", args=[JoinToken.objects.get().pk])
    assert operator.post(address).status_code == 403
    assert JoinToken.objects.get().is_valid()
    assert "No machine joins with" in admin.post(address, follow=True).text
    assert not JoinToken.objects.get().is_valid()


def test_only_an_admin_sees_the_list_of_tokens(operator: Client) -> None:
    assert operator.get("/hosts/join-tokens/").status_code == 403


def test_only_an_admin_sees_the_page_and_who_joined(operator: Client) -> None:
    token, _ = JoinToken.issue("ada", "rack 1")
    assert operator.get(NEW).status_code == operator.get(reverse("hosts_joined", args=[token.pk])).status_code == 403


def test_a_page_on_loopback_says_that_only_this_machine_can_join(admin: Client) -> None:
    words = "only this machine itself can join"
    assert words in admin.get(NEW, headers={"Host": "127.0.0.1:8000"}).text
    assert words in admin.get(NEW).text  # the tests' broker listens on loopback
    with override_settings(VALKEY_BIND="0.0.0.0"):
        assert words not in admin.get(NEW).text


def test_a_broker_that_keeps_no_logins_is_named_with_what_it_means(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "does not let the console make logins for hosts"
    assert words not in admin.get(NEW).text
    monkeypatch.setattr(logins, "are_possible", lambda: False)
    assert words in admin.get(NEW).text


def test_a_broker_that_is_away_breaks_no_page(admin: Client) -> None:
    with override_settings(REDIS_URL="redis://127.0.0.1:1/0"):
        assert admin.get(NEW).status_code == 200


def test_a_revoked_host_says_so_on_its_page_and_in_the_list(admin: Client, operator: Client) -> None:
    token, _ = JoinToken.issue("ada", "rack 1")
    joined(token)
    assert operator.post("/hosts/gpu01/revoke/").status_code == 403
    assert "Token revoked" not in admin.get("/hosts/gpu01/").text
    assert "is cut off" in admin.post("/hosts/gpu01/revoke/", follow=True).text
    for address in ("/hosts/gpu01/", "/hosts/"):
        assert "Token revoked" in operator.get(address).text


def test_a_host_without_a_join_token_cannot_be_revoked(admin: Client) -> None:
    make_host("gpu01")
    assert "Change that to lock it out" in admin.post("/hosts/gpu01/revoke/", follow=True).text


def test_its_lists_opened_alone_lead_to_the_page_that_holds_them(admin: Client) -> None:
    make(admin)
    token = JoinToken.objects.get()
    assert admin.get("/hosts/join-tokens/").headers["Location"] == NEW
    assert admin.get(f"/hosts/joined/{token.pk}/").headers["Location"] == f"{NEW}?token={token.pk}"
    region = admin.get("/hosts/join-tokens/", headers=AS_REGION)
    assert (region.status_code, "rack 1" in region.text, "<html" in region.text) == (200, True, False)
