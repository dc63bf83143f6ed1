"""The commands that make and change the accounts of people, and make tokens for them."""

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from console.accounts import tokens
from console.accounts.models import AuditEntry, Role, User
from tests.factories import make_user

pytestmark = pytest.mark.django_db
PASSWORD = "long enough to keep"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def type_in(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    return type_in


def run(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue().strip()


def test_a_person_is_made_with_role_and_password(typed: Any) -> None:
    typed(f"{PASSWORD}\n")
    assert run("createperson", "olga", "--role", "operator", "--password-stdin") == "olga can log in as operator."
    olga = User.objects.get()
    assert (olga.role, olga.check_password(PASSWORD)) == (Role.OPERATOR, True)
    assert AuditEntry.objects.get().actor == "command line"


def test_a_name_that_is_taken_is_refused(typed: Any) -> None:
    make_user(username="olga")
    typed(f"{PASSWORD}\n")
    with pytest.raises(CommandError, match="a person named olga already"):
        run("createperson", "olga", "--password-stdin")


@pytest.mark.parametrize(("name", "password"), [("olga", "short"), ("olga", "password12"), ("ol ga!", PASSWORD)])
def test_names_and_passwords_that_will_not_do_are_refused(typed: Any, name: str, password: str) -> None:
    typed(f"{password}\n")
    with pytest.raises(CommandError):
        run("createperson", name, "--password-stdin")
    assert not User.objects.exists()


def test_without_a_terminal_the_command_says_how_to_pass_a_password(typed: Any) -> None:
    typed("")
    with pytest.raises(CommandError, match="--password-stdin"):
        run("createperson", "olga")


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(CommandError, match="invalid choice"):
        run("createperson", "olga", "--role", "owner", "--password-stdin")


def test_role_and_switch_are_changed() -> None:
    make_user(Role.VIEWER, username="vera")
    assert run("changeperson", "vera", "--role", "admin", "--off") == "vera cannot log in as admin."
    assert AuditEntry.objects.get().before == {"role": "viewer", "active": True}


def test_a_new_password_is_set(typed: Any) -> None:
    make_user(username="olga")
    typed(f"{PASSWORD}\n")
    run("changeperson", "olga", "--password-stdin")
    assert User.objects.get().check_password(PASSWORD)
    assert AuditEntry.objects.get().after["password"] == "changed"


def test_changing_nothing_or_nobody_is_refused() -> None:
    with pytest.raises(CommandError, match="Say what to change"):
        run("changeperson", "olga")
    with pytest.raises(CommandError, match="no person named olga"):
        run("changeperson", "olga", "--off")


def test_a_token_is_printed_once() -> None:
    make_user(Role.ADMIN, username="ada")
    plain = run("maketoken", "ada", "--name", "ci", "--scope", "operator", "--days", "30")
    found = tokens.find(plain)
    assert found is not None
    assert (found.scope, found.expires_at is None) == (Role.OPERATOR, False)


def test_a_token_for_nobody_or_above_its_owner_is_refused() -> None:
    make_user(Role.VIEWER, username="vera")
    with pytest.raises(CommandError, match="no active person named olga"):
        run("maketoken", "olga", "--name", "ci")
    with pytest.raises(CommandError, match="cannot do more than its owner"):
        run("maketoken", "vera", "--name", "ci", "--scope", "admin")
