"""The yard as it lives: three columns, cards, numbers and charts that move with the traffic over a socket."""

import json
import re
import time
from bisect import bisect_right
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocket, expect

from tests.running import RunningDemo
from tests.waiting import wait_for

pytestmark = pytest.mark.browser


def picture(page: Page, chart: str) -> str:
    """What is drawn in the chart now."""
    drawn: str = page.locator(f"[data-chart={chart}] canvas").evaluate("canvas => canvas.toDataURL()")
    return drawn


def numbers(page: Page) -> list[str]:
    return page.locator("[data-number] dd").all_inner_texts()


def test_there_are_three_columns_with_a_card_for_each_server(yard: Page) -> None:
    expect(yard.locator(".track h2")).to_have_text(["Prefill", "Decode", "Plain"])
    expect(yard.locator(".track[data-role=prefill] .server")).to_have_count(2)
    expect(yard.locator(".track[data-role=decode] .server")).to_have_count(2)
    expect(yard.locator(".track[data-role=plain] .server")).to_have_count(0)
    expect(yard.locator(".server[data-state=ready]")).to_have_count(4)


def test_the_numbers_change_with_the_traffic(yard: Page) -> None:
    wait_for(lambda: "–" not in numbers(yard)[:5], what="every number has a value")
    before = numbers(yard)
    wait_for(lambda: numbers(yard) != before, what="a number changes")


@pytest.mark.parametrize("chart", ["ttft", "gaps"])
def test_the_charts_are_drawn_anew_while_one_looks(yard: Page, chart: str) -> None:
    expect(yard.locator(f"[data-chart={chart}] .chart-none")).to_be_hidden()
    seen: set[str] = set()

    def five_pictures() -> bool:
        seen.add(picture(yard, chart))
        return len(seen) >= 5

    wait_for(five_pictures, what="five different pictures")


def test_a_card_tells_how_old_the_engines_count_is(yard: Page) -> None:
    told = yard.locator(".server[data-state=ready] [data-told]").first
    expect(told).to_have_attribute("title", re.compile(r"as the engine last said\. .* It said so \d\.\d s ago\.$"))


def test_a_dot_appears_for_a_request_of_ones_own(yard: Page, demo: RunningDemo) -> None:
    answer = demo.ask(max_tokens=8, stream=True)
    assert answer.status_code == 200
    row = yard.locator("#latest tr", has_text=answer.headers["x-request-id"])
    expect(row).to_be_visible()
    expect(row.locator("[data-f=outcome]")).to_have_text("ok")
    expect(row.locator("[data-f=completion_tokens]")).to_have_text("8")


def test_frames_come_several_times_a_second_numbered_without_a_gap(page: Page, demo: RunningDemo) -> None:
    messages: list[dict[str, Any]] = []
    came_at: list[float] = []

    def note(payload: str | bytes) -> None:
        messages.append(json.loads(payload))
        came_at.append(time.monotonic())

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", note)

    page.on("websocket", listen)
    page.goto(f"/deployments/{demo.demo['deployment']}/")
    page.locator("#link[data-link=live]").wait_for()

    def frames() -> list[dict[str, Any]]:
        page.wait_for_timeout(50)  # lets messages in
        return [message for message in messages if message["type"] == "events"]

    wait_for(lambda: any(frame["events"] for frame in frames()), "a frame with events")
    wait_for(lambda: frames() and most_within_a_second(came_at) > 3, "several frames within a second")
    assert messages[0]["type"] == "snapshot"
    numbered = [message["seq"] for message in [messages[0], *frames()]]
    assert numbered == list(range(int(str(numbered[0])), int(str(numbered[0])) + len(numbered)))


def most_within_a_second(moments: list[float]) -> int:
    return max(bisect_right(moments, moment + 1.0) - at for at, moment in enumerate(moments))


def test_the_socket_is_the_only_thing_that_an_open_page_asks_for(yard: Page) -> None:
    yard.wait_for_load_state("networkidle")
    asked: list[str] = []
    yard.on("request", lambda request: asked.append(request.url))
    yard.wait_for_timeout(3000)
    assert asked == []
