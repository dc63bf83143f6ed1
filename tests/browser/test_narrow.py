"""Narrow windows: nothing sticks out of the window or of its column, and every page can still be reached."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_themes import PAGES
from tests.running import RunningDemo

pytestmark = pytest.mark.browser

STICKING_OUT = """() => [...document.querySelectorAll('main *')].filter((element) => {
  const box = element.getBoundingClientRect();
  const scrolls = element.closest('.table-wrap, pre, .plot, .tip, .server-load');
  return box.width && !scrolls && (box.right > innerWidth + 1 || box.left < -1);
}).map((element) => `${element.tagName} ${element.className}`)"""
OVERLAPPING = """() => [...document.querySelectorAll('.track')].flatMap((track) => {
  const column = track.getBoundingClientRect();
  return [...track.querySelectorAll('.server, .server-acts > *, .server-load dd')].filter((element) =>
    element.getBoundingClientRect().right > column.right + 1).map((element) => element.className);
})"""


def found(page: Page, script: str) -> Any:
    return page.evaluate(script)


@pytest.mark.parametrize("name", PAGES)
def test_at_the_width_of_a_phone_a_page_fits_and_leads_everywhere(page: Page, demo: RunningDemo, name: str) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto(PAGES[name])
    page.wait_for_load_state("load")
    assert found(page, "document.documentElement.scrollWidth <= innerWidth")
    assert found(page, STICKING_OUT) == []
    for link in ("Deployments", "Hosts", "Requests", "Tokens", "Audit", "API"):
        expect(page.locator(".main-nav").get_by_role("link", name=link, exact=True)).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("width", [400, 768, 1024, 1080])
def test_the_cards_stay_inside_their_columns(yard: Page, width: int) -> None:
    yard.set_viewport_size({"width": width, "height": 900})
    expect(yard.locator(".track .server").first).to_be_visible()
    assert found(yard, OVERLAPPING) == []
