"""Inference keys of a deployment through the API."""

import pytest

from console.accounts.models import InferenceKey, Role, digest
from tests.api.calls import Api, Browser
from tests.factories import make_deployment

pytestmark = pytest.mark.django_db


def test_a_made_key_is_shown_once_and_stored_as_its_hash() -> None:
    make_deployment("chat")
    api = Api(Role.OPERATOR)
    made = api.post("/deployments/chat/keys", {"name": "laptop", "expires_in_days": 7})
    assert made.status == 201
    assert InferenceKey.objects.get().hashed == digest(made.body["key"])
    listed = api.get("/deployments/chat/keys")
    assert (listed.body["count"], "key" in listed.body["items"][0]) == (1, False)


def test_keys_are_listed_for_their_deployment_only() -> None:
    InferenceKey.issue(make_deployment("chat").pk, "laptop")
    make_deployment("code")
    assert Api(Role.VIEWER).get("/deployments/code/keys").body == {"items": [], "count": 0}


def test_a_key_taken_back_is_no_longer_valid() -> None:
    key, _ = InferenceKey.issue(make_deployment("chat").pk, "laptop")
    answer = Api(Role.OPERATOR).delete(f"/deployments/chat/keys/{key.pk}")
    assert (answer.status, answer.body["valid"]) == (200, False)


def test_a_key_of_another_deployment_is_not_found() -> None:
    key, _ = InferenceKey.issue(make_deployment("chat").pk, "laptop")
    make_deployment("code")
    assert Api(Role.OPERATOR).delete(f"/deployments/code/keys/{key.pk}").status == 404
    assert InferenceKey.objects.get().is_valid()


def test_a_viewer_changes_no_keys() -> None:
    key, _ = InferenceKey.issue(make_deployment("chat").pk, "laptop")
    assert Api(Role.VIEWER).post("/deployments/chat/keys", {"name": "more"}).status == 403
    assert Api(Role.VIEWER).delete(f"/deployments/chat/keys/{key.pk}").status == 403
    assert InferenceKey.objects.get().is_valid()


def test_without_login_or_csrf_token_no_key_is_made() -> None:
    make_deployment("chat")
    assert Api().post("/deployments/chat/keys", {"name": "more"}).status == 401
    assert Browser(Role.OPERATOR).post("/deployments/chat/keys", {"name": "more"}).status == 403
    assert not InferenceKey.objects.exists()


@pytest.mark.parametrize("name", ["nothing", "a%00b", "%F0%9F%9A%82"])
def test_keys_of_a_deployment_that_does_not_exist_are_not_found(name: str) -> None:
    assert Api(Role.VIEWER).get(f"/deployments/{name}/keys").status == 404
