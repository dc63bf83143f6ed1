"""Guessing passwords: after five wrong ones for a name from one address, even the right one has to wait."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.contrib.auth import authenticate, login
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.utils import timezone

from tests.factories import make_user

PASSWORD = "correct horse battery"


def log_in(request: HttpRequest) -> HttpResponse:
    user = authenticate(request, username=request.POST["username"], password=request.POST["password"])
    if user is None:
        return HttpResponse("wrong name or password")
    login(request, user)
    return HttpResponse("welcome")


urlpatterns = [path("login/", log_in)]
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_urls() -> Iterator[None]:
    make_user(username="olga", password=PASSWORD)
    make_user(username="vera", password=PASSWORD)
    with override_settings(ROOT_URLCONF=__name__):
        yield


def attempt(username: str, password: str, address: str = "10.0.0.1") -> int:
    form = {"username": username, "password": password}
    return Client(REMOTE_ADDR=address).post("/login/", form).status_code


def guess_five_times() -> None:
    for number in range(5):
        attempt("olga", f"guess {number}")


def test_the_right_password_opens() -> None:
    assert attempt("olga", PASSWORD) == 200


def test_after_five_wrong_ones_the_right_one_waits() -> None:
    guess_five_times()
    assert attempt("olga", PASSWORD) == 429


def test_others_and_other_addresses_are_not_locked_out() -> None:
    guess_five_times()
    assert attempt("vera", PASSWORD) == 200
    assert attempt("olga", PASSWORD, address="10.0.0.2") == 200


def test_after_a_quarter_of_an_hour_the_right_one_opens_again() -> None:
    guess_five_times()
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=16))
    assert attempt("olga", PASSWORD) == 200


def test_a_success_forgets_the_wrong_ones_before_it() -> None:
    for _ in range(2):
        for number in range(4):
            attempt("olga", f"guess {number}")
        assert attempt("olga", PASSWORD) == 200
