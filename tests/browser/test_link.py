"""The console goes away and comes back: the page says so, and finds its way by itself."""

import os
import signal

import pytest
from playwright.sync_api import Page, expect

from tests.running import RunningDemo
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
WATCH = """
link => {
  window.lost = null;
  new MutationObserver(() => {
    if (link.dataset.link === "lost")
      window.lost = document.querySelector("[data-when-link=lost]").checkVisibility();
  }).observe(link, { attributes: true, attributeFilter: ["data-link"] });
}
"""
"""In the page itself, which sees it however short it is: whether the notice is shown when the link is lost."""


def test_a_lost_link_is_told_and_mended(yard: Page, demo: RunningDemo, complaints: list[str]) -> None:
    web = wait_for(lambda: demo.child_pid("web"), what="web runs")
    yard.locator("#link").evaluate(WATCH)
    os.kill(web, signal.SIGKILL)
    yard.wait_for_function("() => window.lost !== null")
    assert yard.evaluate("window.lost"), "the notice was shown when the link was lost"
    expect(yard.locator("#link")).to_have_attribute("data-link", "live")
    expect(yard.locator("[data-when-link=lost]")).to_be_hidden()
    expect(yard.locator(".server[data-state=ready]")).to_have_count(4)
    complaints.clear()  # of the browser, about the console that was away
