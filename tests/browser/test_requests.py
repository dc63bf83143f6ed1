"""A request of one's own is found again: where it went, how long its first token took, how it ended."""

import pytest
from playwright.sync_api import Page, expect

from tests.running import RunningDemo
from tests.waiting import wait_for

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_a_request_of_ones_own_is_in_the_list_with_its_servers(page: Page, demo: RunningDemo, streamed: bool) -> None:
    answer = demo.ask(max_tokens=12, stream=streamed)
    request_id = answer.headers["x-request-id"]
    wait_for(lambda: demo.get("/api/requests", text=request_id)["count"] == 1, what="it is recorded")
    page.goto(f"/requests/?text={request_id}")  # The traffic may have filled the first page meanwhile.
    row = page.locator("tr", has_text=request_id)
    expect(row).to_contain_text(answer.headers["x-switchyard-prefill"])
    expect(row).to_contain_text(answer.headers["x-switchyard-decode"])
    expect(row.locator("[data-outcome=ok]")).to_be_visible()


def test_its_page_tells_its_servers_tokens_and_times(page: Page, demo: RunningDemo) -> None:
    answer = demo.ask(max_tokens=12, stream=True)
    request_id = answer.headers["x-request-id"]
    wait_for(lambda: demo.get("/api/requests", text=request_id)["count"] == 1, what="it is recorded")
    page.goto(f"/requests/{request_id}/")
    facts = page.locator("main")
    for name in (answer.headers["x-switchyard-prefill"], answer.headers["x-switchyard-decode"]):
        expect(facts.get_by_role("link", name=name)).to_be_visible()
    row = demo.get("/api/requests", text=request_id)["items"][0]
    assert row["completion_tokens"] == 12
    assert row["ttft_ms"] > 0
    expect(facts).to_contain_text("12")
    expect(page.locator(".waterfall")).to_be_visible()


def test_a_filter_that_is_typed_acts_by_itself(page: Page, demo: RunningDemo) -> None:
    answer = demo.ask(max_tokens=12, stream=True)
    request_id = answer.headers["x-request-id"]
    wait_for(lambda: demo.get("/api/requests", text=request_id)["count"] == 1, what="it is recorded")
    page.goto("/requests/")
    page.get_by_label("Server").press_sequentially("no-such-server")
    expect(page.locator("#requests-region")).to_contain_text("No request matches.")
    page.get_by_label("Server").clear()
    page.get_by_label("Request id").fill(request_id)
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#requests-region")).to_contain_text("1 request")
