"""Adding a server, a deployment and a host: seen before it starts, refused with words when it cannot be meant."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import name_it
from tests.running import RunningDemo

pytestmark = pytest.mark.browser


@pytest.fixture
def form(page: Page, demo: RunningDemo) -> Page:
    page.goto(f"/deployments/{demo.demo['deployment']}/servers/new/?role=plain")
    page.get_by_text("GPU 1", exact=True).wait_for()
    return page


def choose_gpu(form: Page, index: int) -> None:
    """Only this one; the command is shown anew after each click."""
    for box in form.locator("[name=gpu_indexes]").all():
        box.set_checked(box.get_attribute("value") == str(index), force=True)
    expect(form.locator("#preview")).to_contain_text(f"CUDA_VISIBLE_DEVICES={index}")


def test_the_exact_command_is_shown_before_anything_starts(form: Page, demo: RunningDemo) -> None:
    before = demo.servers()
    choose_gpu(form, 1)
    expect(form.locator("#preview")).to_contain_text("console.simulator serve simulated-8b")
    expect(form.locator("#preview")).not_to_contain_text("kv_producer")
    form.get_by_text("Computes prompts", exact=False).or_(form.locator("[name=role][value=prefill]")).first.click(
        force=True
    )
    expect(form.locator("#preview")).to_contain_text("kv_producer")
    assert demo.servers().keys() == before.keys()


def test_a_server_can_be_added_without_starting_it(form: Page, demo: RunningDemo) -> None:
    choose_gpu(form, 1)
    name_it(form, "spare")
    form.get_by_role("button", name="Add, start later").click()
    expect(form.locator(".track[data-role=plain] .server", has_text="spare")).to_be_visible()
    server = demo.servers()["spare"]
    assert (server["state"], server["generation"]) == ("stopped", 0)
    assert demo.delete(f"/api/servers/{server['id']}").status_code == 200


def test_a_name_typed_while_the_choices_are_fetched_anew_is_kept(form: Page) -> None:
    choose_gpu(form, 1)
    form.route("**/servers/new/?*", lambda route: None)
    form.locator("[name=role][value=decode]").set_checked(True, force=True)
    form.wait_for_function("() => document.querySelector('#server-choices.htmx-request')")
    form.get_by_label("Name").fill("typed-meanwhile")
    form.unroute("**/servers/new/?*")  # lets go on what was held
    expect(form.locator("#preview")).to_contain_text("kv_consumer")
    expect(form.get_by_label("Name")).to_have_value("typed-meanwhile")


def test_starting_on_a_gpu_that_is_held_is_refused_with_the_holder(form: Page, demo: RunningDemo) -> None:
    before = demo.servers().keys()
    choose_gpu(form, 1)
    form.get_by_role("button", name="Add and start").click()
    expect(form.get_by_role("alert").first).to_contain_text("demo-2")
    assert demo.servers().keys() == before


def test_a_deployment_needs_a_name_that_can_be_one(page: Page, demo: RunningDemo) -> None:
    page.goto("/deployments/new/")
    page.get_by_label("Name", exact=True).fill("Not A Name!")
    page.get_by_label("Model", exact=True).fill("some-model")
    page.locator("main form [type=submit]").first.click()
    expect(page.get_by_role("alert").first).to_be_visible()
    assert demo.get("/api/deployments")["count"] == 1
