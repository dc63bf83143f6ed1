"""Guessing passwords: after five wrong ones for a name from one address, even the right one has to wait."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.test import Client
from django.utils import timezone

from tests.factories import make_user

PASSWORD = "correct horse battery"
OPENS, REFUSED, LOCKED = 302, 200, 429
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def people() -> None:
    make_user(username="olga", password=PASSWORD)
    make_user(username="vera", password=PASSWORD)


def attempt(username: str, password: str, address: str = "10.0.0.1") -> int:
    form = {"username": username, "password": password}
    return Client(REMOTE_ADDR=address).post("/login/", form).status_code


def guess_five_times() -> None:
    for number in range(5):
        attempt("olga", f"guess {number}")


def test_the_right_password_opens() -> None:
    assert attempt("olga", PASSWORD) == OPENS


def test_a_wrong_password_does_not() -> None:
    assert attempt("olga", "guess") == REFUSED


def test_the_locked_out_are_told_to_wait() -> None:
    guess_five_times()
    form = {"username": "olga", "password": PASSWORD}
    page = Client(REMOTE_ADDR="10.0.0.1").post("/login/", form).content.decode()
    assert "quarter of an hour" in page


def test_after_five_wrong_ones_the_right_one_waits() -> None:
    guess_five_times()
    assert attempt("olga", PASSWORD) == LOCKED


def test_others_and_other_addresses_are_not_locked_out() -> None:
    guess_five_times()
    assert attempt("vera", PASSWORD) == OPENS
    assert attempt("olga", PASSWORD, address="10.0.0.2") == OPENS


def test_after_a_quarter_of_an_hour_the_right_one_opens_again() -> None:
    guess_five_times()
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=16))
    assert attempt("olga", PASSWORD) == OPENS


def test_a_success_forgets_the_wrong_ones_before_it() -> None:
    for _ in range(2):
        for number in range(4):
            attempt("olga", f"guess {number}")
        assert attempt("olga", PASSWORD) == OPENS
