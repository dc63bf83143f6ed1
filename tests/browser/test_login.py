"""The door: who comes in, who does not, and where one lands."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import log_in
from tests.running import RunningDemo

pytestmark = pytest.mark.browser


def test_the_login_of_the_demo_opens_the_overview(visitor: Page, demo: RunningDemo) -> None:
    log_in(visitor, demo.demo["username"], demo.demo["password"])
    expect(visitor).to_have_url(f"{demo.url}/")
    expect(visitor.get_by_role("link", name=demo.demo["deployment"], exact=True).first).to_be_visible()


def test_a_wrong_password_is_told_and_opens_nothing(visitor: Page, demo: RunningDemo) -> None:
    log_in(visitor, "nobody", "not the password")
    expect(visitor.get_by_role("alert")).to_be_visible()
    expect(visitor.get_by_role("button", name="Log in")).to_be_visible()
    visitor.goto("/")
    expect(visitor).to_have_url(f"{demo.url}/login/?next=/")


def test_a_page_asked_for_before_the_login_is_shown_after_it(visitor: Page, demo: RunningDemo) -> None:
    visitor.goto("/hosts/")
    visitor.get_by_label("Username").fill(demo.demo["username"])
    visitor.get_by_label("Password").fill(demo.demo["password"])
    visitor.get_by_role("button", name="Log in").click()
    expect(visitor).to_have_url(f"{demo.url}/hosts/")


def test_after_logging_out_the_pages_are_closed(visitor: Page, demo: RunningDemo) -> None:
    log_in(visitor, demo.demo["username"], demo.demo["password"])
    visitor.get_by_role("button", name="Log out").click()
    expect(visitor.get_by_role("button", name="Log in")).to_be_visible()
    visitor.goto("/requests/")
    expect(visitor).to_have_url(f"{demo.url}/login/?next=/requests/")
