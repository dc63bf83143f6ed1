"""Every page renders for those who may see it, and refuses the wrong person and the wrong method."""

import pytest
from django.test import Client
from django.urls import reverse

from console.launch import remote
from tests.pages.conftest import Fleet

FOR_EVERYBODY = [
    "overview",
    "deployment",
    "deployment_pairs",
    "deployment_revisions",
    "server",
    "move",
    "hosts",
    "host",
    "requests",
    "request",
    "tokens",
    "audit",
]
FOR_OPERATORS = [
    "deployment_new",
    "deployment_edit",
    "deployment_clone",
    "server_new",
    "server_adopt",
    "server_drill",
    "server_stop",
    "server_move",
    "host_check",
    "host_drain",
]
FOR_ADMINS = ["host_new"]
CHANGES = {
    "server_start": "operator",
    "server_stop": "operator",
    "server_stop_cancel": "operator",
    "server_delete": "operator",
    "server_adopt": "operator",
    "server_let_go": "operator",
    "server_drill": "operator",
    "server_move": "operator",
    "move_cancel": "operator",
    "move_force": "operator",
    "move_again": "operator",
    "deployment_new": "operator",
    "deployment_edit": "operator",
    "deployment_clone": "operator",
    "deployment_roll_back": "operator",
    "host_drain": "operator",
    "server_new": "operator",
    "key_new": "operator",
    "deployment_delete": "admin",
    "host_new": "admin",
    "host_maintenance": "admin",
    "host_remove": "admin",
    "token_new": "admin",
}


@pytest.fixture(autouse=True)
def no_agent_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts here have none, and a check would give it its time."""
    monkeypatch.setattr(remote, "PREFLIGHT_TIMEOUT_S", 0.1)


def address(page: str, fleet: Fleet) -> str:
    words = page.split("_")[0]
    if page in ("server_new", "server_adopt"):
        return reverse(page, args=[fleet.deployment.name])
    if page == "deployment_roll_back":
        return reverse(page, args=[fleet.deployment.name, 1])
    if page.endswith("_new") or page in ("overview", "hosts", "requests", "tokens", "audit"):
        return reverse(page)
    subject = {
        "deployment": fleet.deployment.name,
        "server": fleet.prefill.pk,
        "move": fleet.move.pk,
        "host": fleet.host.name,
        "request": fleet.record.request_id,
    }[words]
    return reverse(page, args=[subject])


@pytest.mark.parametrize("page", FOR_EVERYBODY)
@pytest.mark.parametrize("who", ["viewer", "operator", "admin"])
def test_a_page_for_everybody_renders(page: str, who: str, fleet: Fleet, request: pytest.FixtureRequest) -> None:
    browser: Client = request.getfixturevalue(who)
    answer = browser.get(address(page, fleet))
    assert answer.status_code == 200
    assert "<main" in answer.text


@pytest.mark.parametrize("page", [*FOR_OPERATORS, *FOR_ADMINS, "deployment_pairs", "server", "move", "host", "request"])
def test_a_page_below_another_says_where_it_is(page: str, fleet: Fleet, admin: Client) -> None:
    shown = admin.get(address(page, fleet)).text
    assert 'class="crumbs"' in shown
    assert shown.count("<h1") == 1


@pytest.mark.parametrize("page", ["overview", "deployment_pairs", "server", "move", "hosts", "host", "requests"])
def test_the_region_of_a_page_comes_without_its_frame(page: str, fleet: Fleet, viewer: Client) -> None:
    answer = viewer.get(address(page, fleet), headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "<main" not in answer.text


@pytest.mark.parametrize("page", FOR_OPERATORS + FOR_ADMINS)
def test_a_form_is_refused_to_a_viewer_and_shown_to_an_admin(
    page: str, fleet: Fleet, viewer: Client, admin: Client
) -> None:
    assert viewer.get(address(page, fleet)).status_code == 403
    assert admin.get(address(page, fleet)).status_code == 200


@pytest.mark.parametrize("page", FOR_OPERATORS)
def test_an_operator_sees_the_forms_of_the_fleet(page: str, fleet: Fleet, operator: Client) -> None:
    assert operator.get(address(page, fleet)).status_code == 200


@pytest.mark.parametrize("page", FOR_ADMINS)
def test_an_operator_is_refused_what_admins_do(page: str, fleet: Fleet, operator: Client) -> None:
    assert operator.get(address(page, fleet)).status_code == 403


@pytest.mark.parametrize("page", CHANGES)
def test_a_change_is_refused_to_whoever_lacks_the_role(
    page: str, fleet: Fleet, viewer: Client, operator: Client
) -> None:
    assert viewer.post(address(page, fleet)).status_code == 403
    if CHANGES[page] == "admin":
        assert operator.post(address(page, fleet)).status_code == 403


@pytest.mark.parametrize("page", CHANGES)
def test_a_change_without_a_login_is_refused(page: str, fleet: Fleet) -> None:
    assert Client().post(address(page, fleet)).status_code == 403


@pytest.mark.parametrize("page", FOR_EVERYBODY + FOR_OPERATORS + FOR_ADMINS)
def test_a_page_without_a_login_leads_to_the_login_and_back(page: str, fleet: Fleet) -> None:
    answer = Client().get(address(page, fleet))
    assert answer.status_code == 302
    assert answer.headers["Location"] == f"{reverse('login')}?next={address(page, fleet)}"


@pytest.mark.parametrize("page", FOR_EVERYBODY)
def test_a_page_that_only_shows_takes_no_post(page: str, fleet: Fleet, admin: Client) -> None:
    answer = admin.post(address(page, fleet))
    assert (answer.status_code, "Nothing was changed." in answer.text) == (405, True)


@pytest.mark.parametrize("path", ["/tokens/3/revoke/", "/logout/", "/hosts/join-tokens/3/revoke/"])
def test_an_address_without_a_page_above_it_leads_to_the_next_one(path: str, fleet: Fleet, admin: Client) -> None:
    answer = admin.get(path)
    assert answer.status_code == 405
    assert "Nothing was changed." in answer.text


def test_a_region_gets_no_page_for_a_wrong_method(fleet: Fleet, admin: Client) -> None:
    answer = admin.get(address("server_start", fleet), headers={"HX-Request": "true"})
    assert (answer.status_code, answer.text) == (405, "")


@pytest.mark.parametrize(
    "page", ["server_start", "server_stop_cancel", "server_delete", "move_cancel", "deployment_delete", "host_remove"]
)
def test_the_address_of_a_change_is_no_page_and_says_where_the_page_is(page: str, fleet: Fleet, admin: Client) -> None:
    answer = admin.get(address(page, fleet))
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    assert "It is where a button sends a change" in answer.text
    home = address(page, fleet).rstrip("/").rpartition("/")[0] + "/"
    assert f'href="{home}"' in answer.text
    assert admin.get(home).status_code == 200


def test_a_form_without_its_csrf_token_changes_nothing(fleet: Fleet, operator: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    answer = strict.post(reverse("server_stop", args=[fleet.prefill.pk]))
    assert answer.status_code == 403
    assert "This form is out of date" in answer.text


@pytest.mark.parametrize(
    "path", ["/deployments/none/", "/servers/99999/", "/hosts/none/", "/moves/99999/", "/nothing/"]
)
def test_what_does_not_exist_says_so(path: str, fleet: Fleet, viewer: Client) -> None:
    answer = viewer.get(path)
    assert answer.status_code == 404
    assert "There is nothing at this address" in answer.text


def test_a_refusal_names_the_role_that_is_needed(fleet: Fleet, viewer: Client) -> None:
    assert "This needs the role operator" in viewer.get(address("deployment_new", fleet)).text


def test_the_icon_is_where_browsers_look_for_it(client: Client) -> None:
    assert client.get("/favicon.ico").headers["Location"] == "/static/icon.svg"
