"""Another machine joins: its agent is started with the command of the page, and it takes servers from the form."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from console.demo.servers import LaunchedServers
from tests.browser.conftest import name_it
from tests.running import ROOT, RunningDemo
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.browser


@pytest.fixture
def other_host(page: Page, demo: RunningDemo, tmp_path: Path) -> Iterator[str]:
    """Its name. It has the page's command and nothing else of the console, and has appeared on that page by itself."""
    page.goto("/hosts/new/")
    page.get_by_label("Host's name").fill("gpu02")
    page.get_by_role("button", name="Show the command").click()
    command = shlex.split(page.locator("#agent-command").inner_text())
    assert command[:2] == ["python", "manage.py"]
    expect(page.locator("#joined-region")).to_contain_text("Nobody yet")

    state = tmp_path / "state"
    argv = [*command[2:], "--address", "127.0.0.1", "--simulate-gpus", "2", "--state-dir", str(state)]
    env = {**demo.env, "DATA_DIR": str(tmp_path / "data"), "REDIS_URL": "redis://127.0.0.1:1/0"}
    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "manage.py", *argv, "--port-range", "30100-30199"],
            cwd=ROOT, env=env, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        expect(page.locator("#joined-region")).to_contain_text("2 × Simulated GPU")
        yield "gpu02"
    finally:
        agent.terminate()
        agent.wait(LIMIT_S)
        LaunchedServers(state).end()
        demo.delete("/api/hosts/gpu02")


def test_another_host_joins_and_runs_a_server_added_by_the_form(page: Page, demo: RunningDemo, other_host: str) -> None:
    page.goto("/hosts/")
    expect(page.get_by_role("link", name=other_host, exact=True)).to_be_visible(timeout=30_000)

    page.goto(f"/deployments/{demo.demo['deployment']}/servers/new/?role=plain")
    page.get_by_label("Host").select_option(other_host)
    expect(page.get_by_text(f"GPUs of {other_host}")).to_be_visible()
    boxes = page.locator("[name=gpu_indexes]")
    expect(boxes).to_have_count(2)
    boxes.first.set_checked(True, force=True)
    expect(page.locator("#preview")).to_contain_text("CUDA_VISIBLE_DEVICES=0")
    page.wait_for_load_state("networkidle")
    name_it(page, "visitor")
    page.get_by_role("button", name="Add and start").click()

    card = page.locator(".track[data-role=plain] .server", has_text="visitor")
    expect(card).to_have_attribute("data-state", "ready")
    card.locator("[data-act=stop]").click()
    page.locator("#ask").get_by_role("button", name="Stop").click()
    expect(card).to_have_attribute("data-state", "stopped")
    assert demo.delete(f"/api/servers/{demo.servers()['visitor']['id']}").status_code == 200
    expect(card).to_have_count(0)


def test_a_page_whose_refresh_is_refused_says_that_it_shows_what_was(page: Page) -> None:
    page.goto("/hosts/this-machine/")
    note = page.locator("[data-stale-note=host-region]")
    expect(note).to_be_hidden()
    refused = {"status": 503, "headers": {"HX-Reswap": "none", "HX-Trigger": '{"toast": {"text": "away"}}'}}
    page.route("**/hosts/this-machine/", lambda route: route.fulfill(**refused))
    expect(note).to_be_visible()
    expect(page.locator(".toast-line")).to_have_count(0)
    page.unroute("**/hosts/this-machine/")
    expect(note).to_be_hidden()
