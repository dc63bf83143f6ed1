"""The check of a host, asked from its page and answered by its real agent."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def test_one_click_asks_the_host_and_shows_each_check(page: Page) -> None:
    page.goto("/hosts/this-machine/")
    page.get_by_role("button", name="Check it").first.click()
    results = page.locator("#host-check .check-results")
    expect(results).to_contain_text("Engine The simulated engine is part of this product.")
    expect(results).to_contain_text("Disk")
    expect(results).to_contain_text("Failed")  # every GPU of the demo is taken
    expect(results).to_contain_text("or take another.")


def test_for_no_deployment_in_particular_it_looks_for_vllm(page: Page) -> None:
    page.goto("/hosts/this-machine/")
    page.get_by_label("For a server of").select_option("")
    expect(page.locator("#host-check").get_by_label("Role")).to_be_hidden()
    page.locator("#host-check").get_by_role("button", name="Check it").click()
    expect(page.locator("#host-check .check-results")).to_contain_text("Engine")
    expect(page.locator("#host-check .checks")).not_to_contain_text("simulated engine")
    expect(page.locator("#host-check .check-results")).to_contain_text("needs neither vLLM nor NIXL")
