"""Tokens through the API: listed for those who own them, made by admins, taken back for good."""

import pytest

from console.accounts.models import ApiToken, AuditEntry, Role, digest
from tests.api.calls import Api
from tests.factories import make_user

pytestmark = pytest.mark.django_db


def test_a_made_token_is_shown_once_and_works() -> None:
    made = Api(Role.ADMIN).post("/tokens", {"name": "ci", "scope": "operator", "expires_in_days": 30})
    assert (made.status, made.body["scope"], made.body["valid"]) == (201, "operator", True)
    assert ApiToken.objects.get(name="ci").hashed == digest(made.body["token"])
    listed = Api(Authorization=f"Bearer {made.body['token']}").get("/tokens")
    assert [item["name"] for item in listed.body["items"]] == ["ci", "tests"]
    assert made.body["token"] not in str(listed.body)


def test_no_browser_and_no_proxy_stores_the_answer() -> None:
    assert Api(Role.ADMIN).post("/tokens", {"name": "ci"}).headers["Cache-Control"] == "no-store"


def test_making_one_leaves_a_trace() -> None:
    api = Api(Role.ADMIN)
    api.post("/tokens", {"name": "ci"})
    assert api.user
    assert AuditEntry.objects.get(action="token.make").actor == f"token:tests of {api.user.username}"


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_only_an_admin_makes_tokens(role: Role) -> None:
    assert Api(role).post("/tokens", {"name": "ci"}).status == 403
    assert not ApiToken.objects.filter(name="ci").exists()


def test_an_admin_lists_everybodys_tokens_others_their_own() -> None:
    ApiToken.issue(make_user(), "another", Role.VIEWER)
    assert Api(Role.ADMIN).get("/tokens").body["count"] == 2
    assert Api(Role.VIEWER).get("/tokens").body["count"] == 1


def test_a_token_takes_itself_back() -> None:
    api = Api(Role.VIEWER)
    answer = api.delete(f"/tokens/{ApiToken.objects.get().pk}")
    assert (answer.status, answer.body["valid"]) == (200, False)
    assert api.get("/tokens").status == 401


def test_somebody_elses_token_cannot_be_taken_back() -> None:
    token, _ = ApiToken.issue(make_user(), "another", Role.VIEWER)
    assert Api(Role.OPERATOR).delete(f"/tokens/{token.pk}").status == 404
    token.refresh_from_db()
    assert token.is_valid()


@pytest.mark.parametrize("token_id", ["999", "99999999999999999999999", "x"])
def test_a_token_that_does_not_exist_is_not_found(token_id: str) -> None:
    assert Api(Role.ADMIN).delete(f"/tokens/{token_id}").status == 404


def test_a_part_of_a_list_comes_with_the_whole_count() -> None:
    api = Api(Role.ADMIN)
    for number in range(3):
        api.post("/tokens", {"name": f"ci {number}"})
    part = api.get("/tokens", limit=2, offset=1)
    assert ([item["name"] for item in part.body["items"]], part.body["count"]) == (["ci 1", "ci 0"], 4)
