"""Views under @needs: who reaches them, and what the others are told."""

from collections.abc import Iterator

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from console.accounts.access import actor_of, needs
from console.accounts.models import Role, User
from tests.factories import make_user


@needs(Role.VIEWER)
def seen(request: HttpRequest) -> HttpResponse:
    return HttpResponse(actor_of(request).name)


@needs(Role.OPERATOR)
def change(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(f"changed {number}")


def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("log in here")


urlpatterns = [
    path("seen/", seen),
    path("things/<int:number>/change/", change),
    path("login/", login, name="login"),
]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_urls() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__):
        yield


def logged_in(role: Role) -> Client:
    client = Client()
    client.force_login(make_user(role, username="vera"))
    return client


def test_a_person_with_the_role_reaches_the_view_and_is_named() -> None:
    assert logged_in(Role.VIEWER).get("/seen/").content == b"vera"


def test_a_higher_role_includes_the_lower_ones() -> None:
    assert logged_in(Role.ADMIN).post("/things/7/change/").content == b"changed 7"


def test_a_superuser_counts_as_admin() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="correct horse battery"))
    assert client.post("/things/7/change/").status_code == 200


def test_a_viewer_is_refused_a_change() -> None:
    assert logged_in(Role.VIEWER).post("/things/7/change/").status_code == 403


def test_a_page_without_login_leads_to_the_login_form_and_back() -> None:
    answer = Client().get("/seen/?page=2")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login/?next=/seen/%3Fpage%3D2")


def test_a_change_without_login_is_refused_and_not_sent_to_the_form() -> None:
    assert Client().post("/things/7/change/").status_code == 403


def test_a_region_without_login_takes_the_whole_page_to_the_login_form() -> None:
    page = {"HX-Request": "true", "HX-Current-URL": "http://testserver/deployments/chat/"}
    answer = Client().get("/seen/", headers=page)
    assert answer.headers["HX-Redirect"] == "/login/?next=%2Fdeployments%2Fchat%2F"


def test_a_login_that_was_switched_off_no_longer_counts() -> None:
    client = logged_in(Role.ADMIN)
    User.objects.update(is_active=False)
    assert client.post("/things/7/change/").status_code == 403
