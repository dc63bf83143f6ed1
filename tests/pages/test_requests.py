"""The list of finished requests with its filters, and one request in full."""

import json
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.fleet.models import Deployment
from console.traffic.models import RequestRecord
from tests.pages.conftest import Fleet, make_record

REGION = {"HX-Request": "true"}


def listed(page: str) -> list[str]:
    return re.findall(r'href="/requests/([^/"?]+)/"', page)


def test_without_a_request_it_says_where_the_command_is(fleet: Fleet, viewer: Client) -> None:
    RequestRecord.objects.all().delete()
    page = viewer.get("/requests/").text
    assert "No request has been finished yet." in page


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["slow", "req-1"]),
        ({"route": "plain"}, ["slow"]),
        ({"outcome": "failed"}, ["slow"]),
        ({"server": "chat-1"}, ["req-1"]),
        ({"server": "chat-2"}, ["slow", "req-1"]),
        ({"deployment": "chat"}, ["slow", "req-1"]),
        ({"deployment": "other"}, []),
        ({"min_ttft_ms": "1000"}, ["slow"]),
        ({"text": "req"}, ["req-1"]),
        ({"since": "15m"}, ["slow", "req-1"]),
    ],
)
def test_a_filter_keeps_what_matches(filters: dict[str, str], found: list[str], fleet: Fleet, viewer: Client) -> None:
    old = timezone.now() - timedelta(hours=2)
    make_record(fleet.deployment, None, fleet.decode, "slow", first_token_ms=2000.0, outcome="failed")
    if "since" in filters:
        make_record(fleet.deployment, None, fleet.decode, "old", received_at=old)
    assert listed(viewer.get("/requests/", filters, headers=REGION).text) == found


def test_nothing_that_matches_is_told_apart_from_nothing_at_all(fleet: Fleet, viewer: Client) -> None:
    assert "No request matches." in viewer.get("/requests/", {"outcome": "failed"}).text


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"route": "sideways"}, "Route: There is no “sideways” here. Left out."),
        ({"min_ttft_ms": "soon"}, "TTFT from, ms: Give milliseconds as a number. Left out."),
        ({"min_ttft_ms": "-1"}, "Give milliseconds as a number. Left out."),
        ({"min_ttft_ms": "nan"}, "Give milliseconds as a number. Left out."),
        ({"since": "yesterday"}, "Last: There is no “yesterday” here. Left out."),
    ],
)
def test_a_filter_that_means_nothing_is_left_out_and_said(
    filters: dict[str, str], message: str, fleet: Fleet, viewer: Client
) -> None:
    answer = viewer.get("/requests/", filters)
    assert answer.status_code == 200
    assert message in answer.text
    assert listed(answer.text) == ["req-1"]


def test_the_filters_have_a_button(fleet: Fleet, viewer: Client) -> None:
    form = viewer.get("/requests/").text.split('<form class="box box-pad filters"')[1].split("</form>")[0]
    assert '<button class="btn" type="submit">Filter</button>' in form
    assert "noscript" not in form


@pytest.mark.parametrize("page", ["0", "-1", "99", "x"])
def test_a_page_that_does_not_exist_is_answered_with_one_that_does(page: str, fleet: Fleet, viewer: Client) -> None:
    assert listed(viewer.get("/requests/", {"page": page}).text) == ["req-1"]


def test_paging_keeps_the_filter(fleet: Fleet, viewer: Client) -> None:
    for number in range(60):
        make_record(fleet.deployment, fleet.prefill, fleet.decode, f"many-{number}")
    first = viewer.get("/requests/", {"route": "split", "server": "chat-1"}).text
    assert len(listed(first)) == 50
    assert 'href="?server=chat-1&amp;route=split&amp;page=2"' in first
    assert len(listed(viewer.get("/requests/", {"route": "split", "page": "2"}).text)) == 11


def test_more_requests_cost_no_more_queries(fleet: Fleet, viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            viewer.get("/requests/")
        return len(seen)

    few = queries()
    for number in range(20):
        make_record(fleet.deployment, fleet.prefill, fleet.decode, f"more-{number}")
    assert queries() == few


def test_a_request_tells_where_its_time_went(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get("/requests/req-1/").text
    for words in ("Choosing servers", "Prefill", "90 ms", "Hand-off to the first token", "57 ms", "Stream", "330 ms"):
        assert words in page
    assert "Gaps above 200 ms" in page
    assert "1 of 2" in page


def test_the_chart_gets_the_gaps_of_the_request(fleet: Fleet, viewer: Client) -> None:
    page = viewer.get("/requests/req-1/").text
    found = re.search(r'<script id="gaps-data" type="application/json">(.*?)</script>', page)
    assert found is not None
    assert json.loads(found[1])["gaps_ms"] == [30.0, 300.0]


def test_it_names_who_shared_its_server(fleet: Fleet, viewer: Client) -> None:
    make_record(fleet.deployment, fleet.prefill, fleet.decode, "neighbour", received_at=fleet.record.received_at)
    assert "neighbour" in viewer.get("/requests/req-1/").text


def test_alone_on_its_server_it_says_so(fleet: Fleet, viewer: Client) -> None:
    assert "Nobody: it had the server to itself." in viewer.get("/requests/req-1/").text


def test_a_long_prompt_that_stalled_it_stands_beside_its_gap(fleet: Fleet, viewer: Client) -> None:
    received = RequestRecord.objects.get(request_id="req-1").received_at
    make_record(
        fleet.deployment,
        None,
        fleet.decode,
        "long",
        received_at=received + timedelta(milliseconds=200),
        decode_sent_ms=1.0,
        first_token_ms=260.0,
        prompt_tokens=9000,
    )
    page = viewer.get("/requests/req-1/").text
    assert "Long prompts on its server meanwhile" in page
    assert re.search(r'href="/requests/long/".*?9\u202f000.*?300 ms', page, re.DOTALL)


def test_a_failed_request_shows_its_error(fleet: Fleet, viewer: Client) -> None:
    make_record(fleet.deployment, None, fleet.decode, "bad", outcome="failed", error="decode closed the connection")
    assert "decode closed the connection" in viewer.get("/requests/bad/").text


def test_a_request_that_was_not_streamed_has_no_gap_to_show(fleet: Fleet, viewer: Client) -> None:
    whole = {"streamed": False, "gaps_ms": [], "max_gap_ms": None, "first_token_ms": None, "last_token_ms": None}
    make_record(fleet.deployment, None, fleet.decode, "whole", **whole)
    assert "It was not streamed." in viewer.get("/requests/whole/").text


def test_a_request_outlives_its_deployment_and_servers(fleet: Fleet, viewer: Client) -> None:
    for server in Deployment.objects.get().servers.all():
        server.delete()
    Deployment.objects.all().delete()
    page = viewer.get("/requests/req-1/").text
    assert "chat-2" in page
    assert "/deployments/chat/" not in page


def test_an_id_of_a_client_may_hold_slashes_and_markup(fleet: Fleet, viewer: Client) -> None:
    make_record(fleet.deployment, None, fleet.decode, "job/7/<b>")
    page = viewer.get("/requests/").text
    assert "/requests/job/7/%3Cb%3E/" in page
    answer = viewer.get("/requests/job/7/%3Cb%3E/")
    assert answer.status_code == 200
    assert "<b>" not in answer.text


def test_a_request_that_is_not_known_yet_says_to_look_again(fleet: Fleet, viewer: Client) -> None:
    answer = viewer.get("/requests/running/")
    assert answer.status_code == 404
    assert "some seconds after it ended" in answer.text
