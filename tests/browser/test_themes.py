"""Light and dark, on every page: it is drawn, it fits, it can be looked at in out/screenshots."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.running import RunningDemo

pytestmark = pytest.mark.browser

PAGES = {
    "overview": "/",
    "yard": "/deployments/demo/",
    "server": "/servers/1/",
    "add-server": "/deployments/demo/servers/new/",
    "new-deployment": "/deployments/new/",
    "hosts": "/hosts/",
    "host": "/hosts/this-machine/",
    "requests": "/requests/",
    "tokens": "/tokens/",
    "audit": "/audit/",
    "api": "/api/docs",
}


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def is_dark(colour: str) -> bool:
    red, green, blue = (int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return red + green + blue < 3 * 128


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_drawn_in_both_themes(page: Page, demo: RunningDemo, screenshots: Path, name: str) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        answer = page.goto(PAGES[name])
        assert answer is not None
        assert answer.status == 200
        page.wait_for_load_state("load")
        if name == "yard":
            page.locator("#link[data-link=live]").wait_for()
        assert is_dark(background(page)) == (theme == "dark")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
        page.screenshot(path=screenshots / f"{name}-{theme}.png", full_page=True)


def test_the_switch_changes_the_theme_and_is_remembered(page: Page) -> None:
    page.goto("/")
    before = background(page)
    page.locator("[data-theme-switch]").click()
    assert is_dark(background(page)) != is_dark(before)
    page.reload()
    assert is_dark(background(page)) != is_dark(before)
