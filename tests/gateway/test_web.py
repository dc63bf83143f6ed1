"""The one web process: what answers without a login, what does not, and what it takes from the machine."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest
import redis
from django.conf import settings as django_settings
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from console.accounts.models import ApiToken, Role
from routing import how_it_runs
from tests.factories import make_deployment, make_user
from tests.web import RunningWeb, receive

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def web(valkey: "redis.Redis", transactional_db: None) -> Iterator[RunningWeb]:
    with RunningWeb() as running:
        yield running


def test_its_log_says_whether_the_router_runs_compiled(caplog: pytest.LogCaptureFixture, web: RunningWeb) -> None:
    assert f"The router runs {how_it_runs()}." in [record.getMessage() for record in caplog.get_records("setup")]


@pytest.mark.parametrize("path", ["/healthz", "/health"])
def test_anybody_may_ask_whether_it_lives(web: RunningWeb, path: str) -> None:
    answer = web.client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_the_metrics_need_a_token(web: RunningWeb) -> None:
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic abc"}):
        assert web.client.get("/metrics", headers=headers).status_code == 401


def test_the_metrics_tell_of_the_router_and_of_the_web_process(web: RunningWeb) -> None:
    _, plain = ApiToken.issue(make_user(), "prometheus", Role.VIEWER)
    answer = web.client.get("/metrics", headers={"Authorization": f"Bearer {plain}"})
    assert answer.status_code == 200
    assert "switchyard_router_" in answer.text
    assert "switchyard_web_viewers 0.0" in answer.text


def test_an_expired_token_reads_no_metrics(web: RunningWeb) -> None:
    _, plain = ApiToken.issue(make_user(), "old", Role.VIEWER, timezone.now() - timedelta(seconds=1))
    assert web.client.get("/metrics", headers={"Authorization": f"Bearer {plain}"}).status_code == 401


def test_the_metrics_can_be_opened_for_a_closed_network(web: RunningWeb, settings: Settings) -> None:
    settings.METRICS_OPEN = True
    assert web.client.get("/metrics").status_code == 200


def test_engine_paths_are_answered_by_the_router(web: RunningWeb) -> None:
    answer = web.client.post("/v1/chat/completions", json={"model": "nobody", "messages": []})
    assert answer.headers["x-request-id"]
    assert answer.json()["error"]["message"]


def test_other_paths_are_answered_by_django(web: RunningWeb) -> None:
    assert web.client.get("/no/such/page/").status_code == 404


STATIC = "/static/vendor/uplot/uPlot.min.css"


def test_static_files_are_served_with_their_type(web: RunningWeb) -> None:
    answer = web.client.get(STATIC)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/css")
    assert int(answer.headers["content-length"]) == len(answer.content) > 0


def test_a_static_file_that_has_not_changed_is_not_sent_again(web: RunningWeb) -> None:
    seen = web.client.get(STATIC).headers["last-modified"]
    answer = web.client.get(STATIC, headers={"If-Modified-Since": seen})
    assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize("path", ["/static/nothing.css", "/static/../manage.py", "/static/%2e%2e/manage.py"])
def test_only_static_files_are_served(web: RunningWeb, path: str) -> None:
    assert web.client.get(path).status_code == 404


def test_a_static_file_is_read_only(web: RunningWeb) -> None:
    assert web.client.post(STATIC).status_code == 405


def test_a_body_that_is_too_large_for_a_page_is_refused(web: RunningWeb) -> None:
    answer = web.client.post("/no/such/page/", content=b"x" * (11 * 2**20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def open_connections() -> int:
    """How many connections this process, test included, has to the database."""
    if connection.vendor == "sqlite":
        return open_database_files()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        count: int = cursor.fetchone()[0]
    connection.close()
    return count


def open_database_files() -> int:
    path, count = str(connection.settings_dict["NAME"]), 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{number}") == path
    return count


def test_database_connections_stay_bounded_under_five_hundred_requests_and_twenty_sockets(web: RunningWeb) -> None:
    user, counts = make_user(), []
    make_deployment("chat")
    bound = open_connections() + django_settings.PAGE_SLOTS + 5

    def load(number: int) -> int:
        return web.client.get("/metrics" if number % 2 else "/no/such/page/").status_code

    with ExitStack() as sockets, ThreadPoolExecutor(50) as browsers:
        for _ in range(20):
            receive(sockets.enter_context(web.socket("chat", user)))
        answers = [browsers.submit(load, number) for number in range(500)]
        while not all(answer.done() for answer in answers):
            counts.append(open_connections())
        assert {answer.result() for answer in answers} == {401, 404}
    assert 0 < max(counts) <= bound
