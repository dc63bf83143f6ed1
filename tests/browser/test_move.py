"""The deed the product is for: a server goes to another role while traffic flows, and nobody notices."""

import json

import pytest
from playwright.sync_api import Page, expect

from tests.running import RunningDemo
from tests.waiting import wait_for

pytestmark = pytest.mark.browser

WHOLE_WAY = ["draining", "stopping", "stopped", "pending", "starting", "loading", "verifying", "ready"]
WATCH = """
card => {
  window.seen = [[card.dataset.state, card.dataset.role]];
  new MutationObserver(() => {
    const now = [card.dataset.state, card.dataset.role];
    if (String(window.seen.at(-1)) !== String(now)) window.seen.push(now);
  }).observe(card, { attributes: true, attributeFilter: ["data-state", "data-role"] });
}
"""
MARKED = """
canvas => {
  const [r, g, b] = getComputedStyle(document.documentElement).getPropertyValue("--sy-chart-move").trim()
    .match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    const far = Math.abs(data[at] - r) + Math.abs(data[at + 1] - g) + Math.abs(data[at + 2] - b);
    if (data[at + 3] > 128 && far < 40) count += 1;
  }
  return count;
}
"""


def move(page: Page, server: int, role: str) -> None:
    """By the button on its card and the dialog that says what it means."""
    page.locator(f"#server-{server} [data-move-to={role}]").click()
    dialog = page.locator("#ask")
    submit = dialog.get_by_role("button", name=f"Move it to {role}")
    submit.wait_for()
    confirm = dialog.locator("[name=confirmed]")
    if confirm.count():
        confirm.check()
    submit.click()
    expect(dialog).to_be_hidden()


def wait_until_ready_in(page: Page, server: int, role: str) -> None:
    card = page.locator(f".track[data-role={role}] #server-{server}[data-state=ready]")
    expect(card).to_be_visible()
    page.locator("#move-bar").get_by_text("Done:").wait_for()


def marked_pixels(page: Page) -> int:
    count: int = page.locator("[data-chart=ttft] canvas").evaluate(MARKED)
    return count


def states_told(yard: Page, server: int) -> list[str]:
    """Grows with what the page is told from now on. It is opened anew for that."""
    told: list[str] = []

    def note(payload: str | bytes) -> None:
        events = json.loads(payload).get("events", [])
        cards = [event["server"] for event in events if event["type"] == "server"]
        told.extend(card["state"] for card in cards if card["id"] == server)

    yard.on("websocket", lambda socket: socket.on("framereceived", note))
    yard.reload()
    yard.locator("#link[data-link=live]").wait_for()
    return told


def is_part_of(states: list[str], whole: list[str]) -> bool:
    """In the same order, though short ones may have been missed: what a page is told at once it shows at once."""
    rest = iter(whole)
    return all(state in rest for state in states)


def counts(demo: RunningDemo) -> tuple[int, int]:
    """Requests so far, and those of them that failed or were refused."""
    every = demo.get("/api/requests", limit=1)["count"]
    bad = sum(demo.get("/api/requests", limit=1, outcome=outcome)["count"] for outcome in ("failed", "refused"))
    return every, bad


def wait_for_requests(demo: RunningDemo, more_than: int) -> None:
    wait_for(lambda: counts(demo)[0] > more_than, "requests go on")


def test_a_server_goes_to_decode_to_plain_and_back_while_no_request_fails(yard: Page, demo: RunningDemo) -> None:
    server = next(one["id"] for one in demo.servers().values() if one["role"] == "prefill")
    card = yard.locator(f"#server-{server}")
    before = counts(demo)
    unmarked = marked_pixels(yard)

    told = states_told(yard, server)
    card.evaluate(WATCH)
    move(yard, server, "decode")
    wait_until_ready_in(yard, server, "decode")
    seen = yard.evaluate("window.seen")
    states = [state for (state, _), (before_it, _) in zip(seen[1:], seen, strict=False) if state != before_it]
    assert is_part_of(states, WHOLE_WAY)
    assert "loading" in states
    assert {"draining", "stopping", "loading", "verifying"} <= set(told)
    assert (seen[0], seen[-1]) == (["ready", "prefill"], ["ready", "decode"])

    wait_for(lambda: marked_pixels(yard) > unmarked, "the chart marks the move")

    wait_for_requests(demo, counts(demo)[0] + 5)
    move(yard, server, "plain")
    wait_until_ready_in(yard, server, "plain")
    wait_for_requests(demo, counts(demo)[0] + 5)
    move(yard, server, "prefill")
    wait_until_ready_in(yard, server, "prefill")
    wait_for_requests(demo, counts(demo)[0] + 5)

    after = counts(demo)
    assert after[0] > before[0] + 15
    assert after[1] == before[1], demo.get("/api/requests", outcome="failed")["items"][:3]
    moves = demo.get("/api/moves")["items"][:3]
    assert [(one["from_role"], one["to_role"], one["status"]) for one in moves] == [
        ("plain", "prefill", "done"),
        ("decode", "plain", "done"),
        ("prefill", "decode", "done"),
    ]
    assert all(one["out_of_service_s"] > 0 for one in moves)


def test_a_move_says_what_it_means_before_anything_happens(yard: Page, demo: RunningDemo) -> None:
    server = next(one["id"] for one in demo.servers().values() if one["role"] == "decode")
    yard.locator(f"#server-{server} [data-move-to=plain]").click()
    dialog = yard.locator("#ask")
    expect(dialog.get_by_role("table")).to_contain_text("Decode")
    dialog.get_by_text("Leave it").click()
    expect(dialog).to_be_hidden()
    assert demo.servers()[f"demo-{server}"]["state"] == "ready"
