"""The console goes away and comes back: the page says so, and finds its way by itself."""

import os
import signal

import pytest
from playwright.sync_api import Page, expect

from tests.running import RunningDemo
from tests.waiting import wait_for

pytestmark = pytest.mark.browser


def test_a_lost_link_is_told_and_mended(yard: Page, demo: RunningDemo, complaints: list[str]) -> None:
    web = wait_for(lambda: demo.child_pid("web"), what="web runs")
    os.kill(web, signal.SIGKILL)
    lost = yard.locator("[data-when-link=lost]")
    expect(lost).to_be_visible()
    expect(yard.locator("#link")).to_have_attribute("data-link", "lost")
    expect(yard.locator("#link")).to_have_attribute("data-link", "live", timeout=60_000)
    expect(lost).to_be_hidden()
    expect(yard.locator(".server[data-state=ready]")).to_have_count(4)
    complaints.clear()  # of the browser, about the console that was away
