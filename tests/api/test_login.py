"""Who may call the API at all: a token or a session, and for a change by a session its CSRF token."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.models import ApiToken, InferenceKey, JoinToken, Role, User
from tests.api.calls import Api, Browser

pytestmark = pytest.mark.django_db


def test_a_token_lets_in() -> None:
    assert Api(Role.VIEWER).get("/tokens").status == 200


def test_without_login_nothing_is_shown() -> None:
    answer = Api().get("/tokens")
    assert (answer.status, answer.error["code"]) == (401, "not_logged_in")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("header", ["Bearer syt-unknown", "Bearer", "Basic b2xnYTp4", "syt-unknown"])
def test_a_bad_token_is_refused(header: str) -> None:
    assert Api(Authorization=header).get("/tokens").status == 401


def test_a_bad_token_is_refused_even_beside_a_good_session() -> None:
    browser = Browser(Role.ADMIN)
    browser.headers = {"Authorization": "Bearer syt-unknown"}
    assert browser.get("/tokens").status == 401


@pytest.mark.parametrize(
    "changes", [{"expires_at": timezone.now() - timedelta(days=1)}, {"revoked_at": timezone.now()}]
)
def test_an_expired_or_revoked_token_is_refused(changes: dict[str, object]) -> None:
    api = Api(Role.ADMIN)
    ApiToken.objects.update(**changes)
    assert api.get("/tokens").status == 401


def test_the_token_of_a_person_switched_off_is_refused() -> None:
    api = Api(Role.ADMIN)
    User.objects.update(is_active=False)
    assert api.get("/tokens").status == 401


def test_use_of_a_token_is_noted() -> None:
    Api(Role.VIEWER).get("/tokens")
    assert ApiToken.objects.get().last_used_at is not None


def test_a_session_lets_in() -> None:
    assert Browser(Role.VIEWER).get("/tokens").status == 200


def test_a_change_by_a_session_without_csrf_token_is_refused() -> None:
    answer = Browser(Role.ADMIN).post("/tokens", {"name": "ci"})
    assert (answer.status, answer.error["code"]) == (403, "csrf")
    assert not ApiToken.objects.exists()


def test_a_change_by_a_session_with_csrf_token_is_made() -> None:
    browser = Browser(Role.ADMIN)
    assert browser.call("POST", "/tokens", {"name": "ci"}, headers=browser.with_csrf()).status == 201


def test_a_token_needs_no_csrf_token() -> None:
    api = Api(Role.ADMIN)
    api.client = Client(enforce_csrf_checks=True)
    assert api.post("/tokens", {"name": "ci"}).status == 201


def test_the_scope_of_a_token_caps_its_owners_role() -> None:
    api = Api(Role.ADMIN)
    ApiToken.objects.update(scope=Role.VIEWER)
    answer = api.post("/tokens", {"name": "ci"})
    assert (answer.status, answer.error["code"]) == (403, "forbidden")


def test_a_token_falls_with_its_owners_role() -> None:
    api = Api(Role.ADMIN)
    User.objects.update(role=Role.VIEWER)
    assert api.post("/tokens", {"name": "ci"}).status == 403


@pytest.mark.parametrize(("kind", "words"), [(InferenceKey, "an inference key"), (JoinToken, "a join token")])
def test_a_secret_of_another_kind_is_called_what_it_is(kind: type[InferenceKey | JoinToken], words: str) -> None:
    answer = Api(Authorization=f"Bearer {kind.make_plain()}").get("/servers")
    assert answer.status == 401
    assert f"This is {words}" in answer.error["message"]
    assert "The API needs an API token" in answer.error["message"]
