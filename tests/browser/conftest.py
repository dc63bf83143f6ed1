"""A real Chromium in front of one running demo with traffic on it, for all browser tests."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, StorageState, expect, sync_playwright

from tests.running import ROOT, RunningDemo
from tests.waiting import LIMIT_S, wait_for

# Without the network flags Chromium calls home at every start, and waits where nothing answers.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_MS = LIMIT_S * 1000
expect.set_options(timeout=LIMIT_MS)
SCREENSHOTS = ROOT / "out" / "screenshots"


def chromium() -> str:
    wanted = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else NAMES
    found = next((path for name in wanted if (path := shutil.which(name))), None)
    assert found, "No Chromium on the PATH: `make chromium` installs it, or name it with CHROMIUM=/path"
    return found


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDemo]:
    demo = RunningDemo(tmp_path_factory.mktemp("browser"))
    try:
        yield demo.wait_until_ready()
    finally:
        demo.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the page's scripts and its content policy complained about. A test that expects some empties the list."""
    return []


@pytest.fixture(scope="session")
def logged_in(browser: Browser, demo: RunningDemo) -> StorageState:
    """The cookies of the admin: logging in takes as long as looking at a page. Who logs out, logs in by hand before."""
    with browser.new_context(base_url=demo.url) as context:
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        log_in(page, demo.demo["username"], demo.demo["password"])
        page.get_by_role("button", name="Log out").wait_for()
        return context.storage_state()


@contextmanager
def new_page(browser: Browser, demo: RunningDemo, complaints: list[str], **more: Any) -> Iterator[Page]:
    with browser.new_context(base_url=demo.url, viewport={"width": 1440, "height": 1000}, **more) as context:
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: note(message, complaints))
        yield page
    assert complaints == []


@pytest.fixture
def visitor(browser: Browser, demo: RunningDemo, complaints: list[str]) -> Iterator[Page]:
    """A page of somebody who is not logged in."""
    with new_page(browser, demo, complaints) as page:
        yield page


# A refused form is an answer, and a request that a page gave up because it was left is nobody's fault.
NO_COMPLAINT = re.compile(r"responded with a status of (400|409|422|503)|^htmx:(afterRequest|sendError|sendAbort)")


def note(message: ConsoleMessage, complaints: list[str]) -> None:
    if message.type == "error" and not NO_COMPLAINT.search(message.text):
        complaints.append(f"{message.text} ({message.location.get('url')})")


@pytest.fixture
def page(browser: Browser, demo: RunningDemo, complaints: list[str], logged_in: StorageState) -> Iterator[Page]:
    """A page of the admin, nowhere yet."""
    with new_page(browser, demo, complaints, storage_state=logged_in) as page:
        yield page


@pytest.fixture
def yard(page: Page, demo: RunningDemo) -> Page:
    """The page of the demo's deployment, its live link up."""
    page.goto(f"/deployments/{demo.demo['deployment']}/")
    page.locator("#link[data-link=live]").wait_for()
    return page


@pytest.fixture(scope="session")
def screenshots() -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS


def name_it(form: Page, name: str) -> None:
    """As the last thing before the button, and again should the form have been drawn anew meanwhile."""
    field = form.get_by_label("Name")

    def is_named() -> bool:
        if field.input_value() != name:
            field.fill(name)
            return False
        return True

    wait_for(is_named, what="the name stands in the form")


def log_in(page: Page, username: str, password: str) -> None:
    page.goto("/login/")
    page.get_by_label("Username").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
