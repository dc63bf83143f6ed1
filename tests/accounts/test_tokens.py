"""API tokens: made by admins, shown once, kept as a hash, good until they expire or are taken back."""

from datetime import timedelta

import pytest
from django.utils import timezone

from console.accounts import tokens
from console.accounts.audit import person
from console.accounts.models import ApiToken, AuditEntry, Role, digest
from console.fleet.errors import Forbidden, Invalid, NotFound
from tests.factories import make_user

pytestmark = pytest.mark.django_db


def made(role: Role = Role.ADMIN, scope: Role = Role.OPERATOR, days: int | None = None) -> tuple[ApiToken, str]:
    owner = make_user(role)
    return tokens.issue(person(make_user(Role.ADMIN)), owner, "ci", scope, days)


def test_a_token_is_found_by_its_plain_text() -> None:
    token, plain = made()
    assert tokens.find(plain) == token
    assert plain.startswith("syt-")


def test_only_the_hash_is_stored() -> None:
    token, plain = made()
    row = ApiToken.objects.values().get(pk=token.pk)
    assert row["hashed"] == digest(plain)
    assert plain not in map(str, row.values())


def test_an_unknown_token_is_nobody() -> None:
    assert tokens.find("syt-unknown") is None


def test_an_expired_token_is_nobody() -> None:
    token, plain = made(days=1)
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert tokens.find(plain) is None


def test_a_revoked_token_is_nobody_and_the_trail_says_who_took_it_back() -> None:
    token, plain = made()
    tokens.revoke(token.pk, person(token.user), token.user)
    assert tokens.find(plain) is None
    assert AuditEntry.objects.get(action="token.revoke").actor == token.user.username


def test_revoking_twice_leaves_one_trace() -> None:
    token, _ = made()
    for _ in range(2):
        tokens.revoke(token.pk, person(token.user), token.user)
    assert AuditEntry.objects.filter(action="token.revoke").count() == 1


def test_the_token_of_an_account_that_was_switched_off_is_nobody() -> None:
    token, plain = made()
    type(token.user).objects.filter(pk=token.user.pk).update(is_active=False)
    assert tokens.find(plain) is None


def test_the_scope_caps_what_the_owner_may() -> None:
    token, _ = made(role=Role.ADMIN, scope=Role.VIEWER)
    assert tokens.actor(token).role == Role.VIEWER


def test_a_token_loses_what_its_owner_loses() -> None:
    token, _ = made(role=Role.ADMIN, scope=Role.ADMIN)
    token.user.role = Role.VIEWER
    assert tokens.actor(token).role == Role.VIEWER


def test_the_trail_names_token_and_owner() -> None:
    token, _ = made()
    assert tokens.actor(token).name == f"token:ci of {token.user.username}"


def test_use_is_noted_once_a_minute() -> None:
    token, plain = made()
    tokens.find(plain)
    first = ApiToken.objects.get(pk=token.pk).last_used_at
    tokens.find(plain)
    assert ApiToken.objects.get(pk=token.pk).last_used_at == first
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=timezone.now() - timedelta(minutes=2))
    tokens.find(plain)
    latest = ApiToken.objects.get(pk=token.pk).last_used_at
    assert first is not None
    assert latest is not None
    assert latest > first


def test_an_operator_makes_no_tokens() -> None:
    olga = make_user(Role.OPERATOR)
    with pytest.raises(Forbidden):
        tokens.issue(person(olga), olga, "ci", Role.VIEWER)
    assert not ApiToken.objects.exists()


def test_a_scope_above_the_owner_is_refused() -> None:
    with pytest.raises(Invalid, match="cannot do more than its owner") as refused:
        made(role=Role.VIEWER, scope=Role.OPERATOR)
    assert refused.value.field == "scope"


@pytest.mark.parametrize(
    ("name", "days", "field"), [("", None, "name"), ("x" * 81, None, "name"), ("ci", 0, "expires_in_days")]
)
def test_names_and_lives_that_cannot_be_meant_are_refused(name: str, days: int | None, field: str) -> None:
    ada = make_user(Role.ADMIN)
    with pytest.raises(Invalid) as refused:
        tokens.issue(person(ada), ada, name, Role.VIEWER, days)
    assert refused.value.field == field


def test_others_do_not_see_a_token_but_an_admin_does() -> None:
    token, _ = made()
    vera, ada = make_user(Role.VIEWER), make_user(Role.ADMIN)
    with pytest.raises(NotFound):
        tokens.revoke(token.pk, person(vera), vera)
    assert tokens.visible_to(ada, person(ada)).get() == token
