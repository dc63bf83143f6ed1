"""Join tokens through the API: an admin's matter, shown once, taken back for good."""

import pytest

from console.accounts.models import AuditEntry, HostLogin, JoinToken, Role, digest
from tests.api.calls import Api
from tests.factories import make_host

pytestmark = pytest.mark.django_db


def test_a_made_token_is_shown_once_and_stored_as_a_hash() -> None:
    ada = Api(Role.ADMIN)
    made = ada.post("/join-tokens", {"name": "rack 1", "host_name": "gpu01"})
    assert (made.status, made.body["host_name"], made.body["single_use"], made.body["valid"]) == (
        201,
        "gpu01",
        True,
        True,
    )
    assert JoinToken.objects.get().hashed == digest(made.body["token"])
    assert made.body["token"] not in str(ada.get("/join-tokens").body)
    assert AuditEntry.objects.get(action="join_token.make").target == "join token rack 1"


def test_a_dry_run_makes_none_and_shows_none() -> None:
    made = Api(Role.ADMIN).post("/join-tokens", {"name": "rack 1", "dry_run": True})
    assert (made.status, made.body["token"], JoinToken.objects.count()) == (201, None, 0)


def test_a_repeated_key_makes_one_and_does_not_show_it_again() -> None:
    ada = Api(Role.ADMIN)
    first, again = (ada.post("/join-tokens", {"name": "rack 1"}, Idempotency_Key="k1") for _ in range(2))
    assert (first.body["token"] is None, again.body["token"], JoinToken.objects.count()) == (False, None, 1)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_only_an_admin_makes_sees_and_revokes_them(role: Role) -> None:
    token, _ = JoinToken.issue("ada", "rack 1")
    api = Api(role)
    assert api.post("/join-tokens", {"name": "mine"}).status == 403
    assert api.get("/join-tokens").status == 403
    assert api.delete(f"/join-tokens/{token.pk}").status == 403
    assert JoinToken.objects.get().is_valid()


def test_a_revoked_one_is_listed_as_such_with_the_hosts_that_joined() -> None:
    token, _ = JoinToken.issue("ada", "rack 1")
    HostLogin.objects.create(host=make_host("gpu01"), token=token, name="gpu01", prefix="1", hashed="1")
    ada = Api(Role.ADMIN)
    assert ada.delete(f"/join-tokens/{token.pk}").body["valid"] is False
    (listed,) = ada.get("/join-tokens").body["items"]
    assert (listed["valid"], listed["hosts"]) == (False, ["gpu01"])
    assert AuditEntry.objects.filter(action="join_token.revoke").count() == 1


@pytest.mark.parametrize(
    "body", [{"name": ""}, {"name": "x", "host_name": "GPU 1"}, {"name": "x", "expires_in_days": 0}]
)
def test_terms_that_cannot_be_meant_are_refused(body: dict[str, object]) -> None:
    assert Api(Role.ADMIN).post("/join-tokens", body).status == 400


def test_a_hosts_login_is_shown_and_revoked() -> None:
    host = make_host("gpu01")
    ada = Api(Role.ADMIN)
    assert ada.get("/hosts/gpu01").body["login"] is None
    assert ada.post("/hosts/gpu01/revoke", {}).error["code"] == "conflict"
    HostLogin.objects.create(host=host, name="gpu01", prefix="1", hashed="1")
    assert ada.get("/hosts").body["items"][0]["login"] == "own"
    assert ada.post("/hosts/gpu01/revoke", {"reason": "stolen"}).body["login"] == "revoked"
    assert AuditEntry.objects.get(action="host.revoke").reason == "stolen"
