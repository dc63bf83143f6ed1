"""The form that adopts a server, and how the pages show one that is not ours."""

from collections.abc import Iterator

import pytest
from django.test import Client

from console.fleet.models import Server
from console.fleet.states import ServerState
from tests.pages.conftest import Fleet
from tests.sent import Sent, sent
from tests.simulator.harness import MODEL, NAME, SimulatedServer

__all__ = ["sent"]
FORM = "/deployments/chat/servers/adopt/"
URL = "http://10.0.0.5:8000"


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedServer]:
    with SimulatedServer("plain") as server:
        yield server


@pytest.fixture
def theirs(fleet: Fleet) -> Server:
    made = Server(deployment=fleet.deployment, name="chat-9", role="decode", state=ServerState.READY, generation=1)
    made.adopted_url, made.adopted_api_key = URL, "very-secret"
    made.save()
    return made


def test_the_deployment_leads_to_the_form(fleet: Fleet, operator: Client, viewer: Client) -> None:
    assert FORM in operator.get("/deployments/chat/").text
    assert FORM not in viewer.get("/deployments/chat/").text


def test_a_server_is_adopted_from_the_form(fleet: Fleet, operator: Client, engine: SimulatedServer, sent: Sent) -> None:
    fleet.deployment.served_model_name, fleet.deployment.model = NAME, MODEL
    fleet.deployment.save(update_fields=["served_model_name", "model"])
    answer = operator.post(FORM, {"url": engine.url, "role": "", "name": "chat-9", "api_key": "k"}, follow=True)
    assert answer.redirect_chain[-1][0] == "/deployments/chat/"
    assert "chat-9 is adopted as plain server" in answer.text
    assert Server.objects.get(name="chat-9").adopted_url == engine.url


def test_a_refusal_stands_at_its_field_and_the_key_is_not_shown_again(fleet: Fleet, operator: Client) -> None:
    answer = operator.post(FORM, {"url": "http://169.254.169.254/", "api_key": "very-secret"})
    assert answer.status_code == 400
    assert "link-local" in answer.text
    assert "very-secret" not in answer.text


def test_the_yard_says_that_it_is_not_ours_to_stop(theirs: Server, operator: Client) -> None:
    page = operator.get("/deployments/chat/").text
    assert f"not ours to stop · {URL}" in page
    assert "very-secret" not in page


def test_its_page_offers_to_let_go_and_nothing_else(theirs: Server, operator: Client, viewer: Client) -> None:
    page = operator.get(f"/servers/{theirs.pk}/").text
    assert f"/servers/{theirs.pk}/let-go/" in page
    for deed in ("start/", "stop/", "move/", "delete/", "log/"):
        assert f"/servers/{theirs.pk}/{deed}" not in page
    assert f"/servers/{theirs.pk}/let-go/" not in viewer.get(f"/servers/{theirs.pk}/").text


def test_pages_of_its_neighbours_still_render(theirs: Server, fleet: Fleet, admin: Client) -> None:
    for address in ("/", "/hosts/", "/hosts/gpu01/", f"/servers/{fleet.prefill.pk}/", f"/servers/{theirs.pk}/log/"):
        assert admin.get(address).status_code == 200, address


def test_letting_go_is_confirmed_in_words(theirs: Server, operator: Client) -> None:
    answer = operator.post(f"/servers/{theirs.pk}/let-go/", follow=True)
    assert "takes no new request" in answer.text
    assert Server.objects.get(pk=theirs.pk).state == ServerState.DRAINING
