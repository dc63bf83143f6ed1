"""Revisions of a deployment: what changed, the way back, and clones."""

import pytest
from django.test import Client

from console.fleet import actions
from console.fleet.models import Deployment, Server
from console.fleet.states import ServerState
from tests.factories import ADMIN
from tests.pages.conftest import Fleet

PAGE = "/deployments/mixtral/revisions/"


@pytest.fixture
def changed(fleet: Fleet) -> Deployment:
    """A deployment at its second revision."""
    made = actions.create_deployment(
        ADMIN, {"name": "mixtral", "model": "/models/mixtral", "served_model_name": "mixtral"}
    )
    return actions.update_deployment(made.pk, ADMIN, {"engine_args": ["--max-model-len", "8192"]}, "longer prompts")


def test_each_revision_tells_what_changed_by_whom_and_why(changed: Deployment, viewer: Client) -> None:
    page = viewer.get(PAGE).text
    for words in ("engine args", "none", "--max-model-len 8192", "ada", "longer prompts", "as it was created"):
        assert words in page
    assert "Bring back" not in page


def test_an_earlier_revision_is_brought_back_as_a_new_one(changed: Deployment, admin: Client) -> None:
    answer = admin.post(f"{PAGE}1/restore/", follow=True)
    assert "are back, as revision 3" in answer.text
    assert Deployment.objects.get(name="mixtral").engine_args == []


def test_a_revision_that_does_not_exist_is_refused(changed: Deployment, admin: Client) -> None:
    assert "has no revision 9" in admin.post(f"{PAGE}9/restore/", follow=True).text


def test_a_server_that_runs_with_earlier_settings_is_named(fleet: Fleet, viewer: Client) -> None:
    Server.objects.filter(pk=fleet.prefill.pk).update(revision=1)
    Deployment.objects.filter(pk=fleet.deployment.pk).update(revision=2)
    assert "still run with earlier settings" in viewer.get("/deployments/chat/revisions/").text
    assert "Stop it and start it again to take them over." in viewer.get(f"/servers/{fleet.prefill.pk}/").text
    Server.objects.filter(pk=fleet.prefill.pk).update(state=ServerState.STOPPED)
    assert (
        "the deployment is at 2. Start it again to take them over." in viewer.get(f"/servers/{fleet.prefill.pk}/").text
    )


def test_a_clone_has_the_settings_and_no_server(changed: Deployment, admin: Client) -> None:
    answer = admin.post("/deployments/mixtral/clone/", {"name": "mixtral-2"})
    assert answer.headers["Location"] == "/deployments/mixtral-2/"
    clone = Deployment.objects.get(name="mixtral-2")
    assert (clone.engine_args, clone.served_model_name) == (["--max-model-len", "8192"], "mixtral-2")
    assert not clone.servers.exists()


@pytest.mark.parametrize(
    ("name", "message"), [("mixtral", "already"), ("Not A Name", "Use lower-case letters"), ("", "required")]
)
def test_a_clone_under_a_wrong_name_is_answered_at_the_field(
    name: str, message: str, changed: Deployment, admin: Client
) -> None:
    answer = admin.post("/deployments/mixtral/clone/", {"name": name})
    assert answer.status_code == 400
    assert message in answer.text
