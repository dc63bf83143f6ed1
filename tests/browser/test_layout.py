"""Text keeps inside its box, and what stands side by side is in line, at the width of a small screen."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.running import RunningDemo
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
LONG_STATE = "Unreachable: host this-machine stopped reporting; it was ready and may well go on, as far as one can tell"


@pytest.fixture
def small(page: Page) -> Page:
    page.set_viewport_size({"width": 1280, "height": 900})
    return page


def sides(page: Page, selector: str) -> list[dict[str, Any]]:
    """Where each element stands."""
    found: list[dict[str, Any]] = page.locator(selector).evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    assert found, selector
    return found


def test_a_long_state_is_broken_into_lines_inside_its_box(small: Page) -> None:
    small.goto("/servers/1/")
    state = small.locator(".facts .state").first
    expect(state).to_be_visible()
    state.evaluate("(state, text) => { state.textContent = text; }", LONG_STATE)
    (box,) = sides(small, "[aria-label=State]")
    assert state.evaluate("state => state.getBoundingClientRect().right") < box["right"]


def test_what_a_role_does_can_be_read_to_its_end(small: Page) -> None:
    small.goto("/deployments/demo/")
    words = small.locator(".track .what")
    expect(words).to_have_count(3)
    assert words.evaluate_all("all => all.every((one) => one.scrollWidth <= one.clientWidth)")


def test_the_inputs_of_a_row_stand_in_line_though_a_label_is_long(small: Page) -> None:
    small.goto("/deployments/new/")
    long_one = small.get_by_label("Busy decode server, streams")
    neighbours = [small.get_by_label("Short prompts, tokens"), small.get_by_label("Share to plain servers, %")]
    top = long_one.evaluate("input => input.getBoundingClientRect().top")
    assert [one.evaluate("input => input.getBoundingClientRect().top") for one in neighbours] == [top, top]


@pytest.mark.parametrize(("path", "button"), [("/audit/", "Filter"), ("/hosts/this-machine/", "Check it")])
def test_a_button_is_as_high_as_the_fields_beside_it(small: Page, path: str, button: str) -> None:
    small.goto(path)
    (beside,) = sides(small, f".filters > button:has-text('{button}')")
    field = sides(small, ".filters .form-control, .filters .form-select")[0]
    assert (beside["top"], beside["bottom"]) == pytest.approx((field["top"], field["bottom"]), abs=0.5)


def test_the_last_row_of_a_table_has_no_line_of_its_own(small: Page) -> None:
    small.goto("/deployments/demo/pairs/")
    last = small.locator("table.list tbody tr:last-child > *")
    widths = last.evaluate_all("all => all.map((cell) => getComputedStyle(cell).borderBottomWidth)")
    assert set(widths) == {"0px"}


def test_the_page_of_a_log_begins_at_its_end_and_fills_the_window(small: Page) -> None:
    small.goto("/servers/1/log/")
    log, view = small.locator("pre.log"), small.locator(".log-end")
    expect(log).to_be_visible()
    assert log.evaluate("log => log.offsetHeight") > view.evaluate("view => view.clientHeight")
    (text,), (window,) = sides(small, "pre.log"), sides(small, ".log-end")
    assert text["bottom"] == pytest.approx(window["bottom"], abs=1)
    assert 900 - window["bottom"] < 100


def test_words_about_pairs_keep_away_from_what_follows_in_the_dialog_of_a_move(small: Page) -> None:
    small.goto("/servers/1/move/?role=plain")
    (words,), (table,) = sides(small, ".arrow-table + .help"), sides(small, ".arrow-table")
    following = sides(small, ".arrow-table + .help + *")[0]
    assert words["top"] - table["bottom"] >= 8
    assert following["top"] - words["bottom"] >= 8


def test_an_empty_chart_says_nothing_before_the_traffic_is_known(small: Page) -> None:
    small.route_web_socket("**/ws/**", lambda socket: None)
    small.goto("/deployments/demo/")
    expect(small.locator("[data-chart=ttft] canvas")).to_be_visible()
    small.wait_for_timeout(1000)  # several times as long as it takes to draw
    expect(small.locator(".chart-none:visible")).to_have_count(0)


def test_the_figures_of_a_deployment_reach_the_bottom_of_its_card(small: Page) -> None:
    small.goto("/")
    card = small.locator("article.deployment").first
    card.evaluate("card => { card.style.height = '20rem'; }")  # as beside a neighbour with more servers
    figures, whole = sides(small, ".deployment-numbers")[0], sides(small, "article.deployment")[0]
    assert figures["bottom"] == pytest.approx(whole["bottom"], abs=1.5)


def test_the_last_part_of_a_request_stays_on_its_track(small: Page, demo: RunningDemo) -> None:
    wait_for(lambda: demo.get("/api/requests", limit=1)["items"], "a finished request")
    small.goto(f"/requests/{demo.get('/api/requests', limit=1)['items'][0]['request_id']}/")
    tracks, bars = sides(small, ".waterfall .lane"), sides(small, ".waterfall .lane i")
    assert all(bar["right"] <= track["right"] + 0.1 for bar, track in zip(bars, tracks, strict=True))


def test_no_line_of_an_empty_chart_goes_through_its_words(small: Page) -> None:
    small.route_web_socket("**/ws/**", lambda socket: None)
    small.goto("/deployments/demo/")
    expect(small.locator("[data-chart=stalled] canvas")).to_be_visible()
    on_top = small.locator(".chart-none").evaluate_all("""all => all.map((words) => {
        Object.assign(words, { hidden: false }).style.pointerEvents = "auto";
        words.scrollIntoView({ block: "center", behavior: "instant" });
        const box = words.firstElementChild.getBoundingClientRect();
        const met = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
        words.hidden = true;
        return met === words.firstElementChild;
    })""")
    assert on_top == [True, True, True]
