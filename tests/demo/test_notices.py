"""What `manage.py up` says after its start."""

from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import OperationalError
from django.test import override_settings

from console.accounts.models import Role, User
from console.checks import check_settings
from console.demo import notices
from tests.factories import make_user
from tests.own import held_port


def test_a_broker_that_answers_is_not_spoken_of() -> None:
    assert notices.of_broker(settings.REDIS_URL) == ""


def test_a_broker_where_nobody_listens_is_named_without_its_password_and_with_what_waits() -> None:
    with held_port() as port:
        said = notices.of_broker(f"redis://user:secret@127.0.0.1:{port}/0")
    assert said.startswith(f"The broker that REDIS_URL names, redis://127.0.0.1:{port}/0, does not answer: ")
    assert "Connection refused" in said
    assert "no server starts, stops or moves" in said
    assert "secret" not in said


def test_a_broker_that_refuses_the_password_is_told_with_that() -> None:
    parts = urlsplit(settings.REDIS_URL)
    said = notices.of_broker(f"redis://:wrong-one@{parts.hostname}:{parts.port}/0")
    assert "password" in said
    assert "wrong-one" not in said


def test_a_socket_that_is_not_there_is_told_too() -> None:
    assert "unix:///nowhere/valkey.sock, does not answer" in notices.of_broker("unix:///nowhere/valkey.sock")


@pytest.mark.parametrize("url", ["redis://host:port/0", "redis://:pass/word@host:6379/0"])
def test_an_address_with_a_port_that_is_none_is_refused_by_a_check(url: str) -> None:
    with override_settings(REDIS_URL=url):
        [refused] = [message for message in check_settings(None) if message.id == "switchyard.E005"]
    assert "pass/word" not in f"{refused.msg} {refused.hint}"


@pytest.mark.django_db
def test_a_console_without_people_says_how_to_make_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/opt/my python/bin/python")
    monkeypatch.setenv("DATA_DIR", "/srv/yard")
    monkeypatch.setenv("DATABASE_URL", "postgres://user:secret@127.0.0.1/name")
    said = notices.of_people()
    command = "DATA_DIR=/srv/yard '/opt/my python/bin/python' manage.py createperson NAME --role admin"
    assert said.startswith("Nobody can log in yet.")
    assert said.endswith(f"{command}   (with DATABASE_URL as here)")


@pytest.mark.django_db
def test_a_console_with_a_person_says_nothing_of_people() -> None:
    make_user(Role.VIEWER)
    assert notices.of_people() == ""


def test_a_database_that_went_away_meanwhile_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise OperationalError("gone")

    monkeypatch.setattr(User.objects, "exists", fail)
    assert notices.of_people() == ""
