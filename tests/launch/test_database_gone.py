"""PostgreSQL is killed under a running console and comes back: what each part does, and that nothing is lost."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import httpx
import pytest
from django.db import connection, connections, transaction

from console.accounts.models import ApiToken, AuditEntry, Role
from console.fleet import actions, guards
from console.fleet.models import Host, Server
from console.fleet.states import ServerState
from console.traffic.models import RequestRecord
from tests.factories import OPERATOR, make_server, make_user
from tests.launch.clients import traffic, wait_for_more
from tests.launch.postgres import Postgres, postgres, programs
from tests.launch.running import Installation, add_server, installed, make_deployment, wait_for_state
from tests.waiting import wait_for
from tests.web import session_of

S = ServerState


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    found = programs()
    if found is None:
        pytest.skip("needs PostgreSQL's programs")
    with postgres(found) as started:
        yield started


@pytest.fixture(scope="module")
def running(
    server: Postgres, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[Installation]:
    """Worker, beat, router and one host, over PostgreSQL."""
    with installed(tmp_path_factory, django_db_blocker, server.url) as installation:
        installation.run_agent(gpus=2)
        yield installation


@pytest.fixture
def ready(running: Installation) -> Iterator[Server]:
    server = add_server(make_deployment(), "plain", 0)
    actions.start(server.pk, OPERATOR)
    yield wait_for_state(server, S.READY)
    actions.stop(server.pk, OPERATOR, force=True)
    wait_for_state(server, S.STOPPED)


def test_a_lock_on_a_host_lets_through_what_only_refers_to_it(running: Installation) -> None:
    """A report holds its host while it waits for the host's servers, and a stop its server while its commit looks
    whether the host is still there: each would wait for the other."""
    host = wait_for(Host.objects.first, "the host")

    def refer() -> Server:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '10s'")
                return make_server(host=host)
        finally:
            connection.close()

    with ThreadPoolExecutor() as threads, transaction.atomic():
        guards.host(host.pk)
        added = threads.submit(refer).result()
    added.delete()
    added.deployment.delete()  # its name might be the next one of another test


@contextmanager
def gone(server: Postgres) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()
        connections.close_all()  # the test's own was cut as well


class Caller:
    """A browser and a program, both logged in before the database goes."""

    def __init__(self, running: Installation) -> None:
        user = make_user(Role.OPERATOR)
        _, token = ApiToken.issue(user, "tests", Role.OPERATOR)
        at = {"base_url": f"http://127.0.0.1:{running.web_port}", "timeout": 120, "trust_env": False}
        self.browser = httpx.Client(cookies={"sessionid": session_of(user)}, **at)  # type: ignore[arg-type]
        self.program = httpx.Client(headers={"Authorization": f"Bearer {token}"}, **at)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.browser.close()
        self.program.close()

    def form_token(self, path: str) -> dict[str, str]:
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.browser.get(path).text)
        assert found
        return {"csrfmiddlewaretoken": found[1]}

    def is_answered(self) -> bool:
        return self.browser.get("/").status_code == 200


def test_without_postgresql_requests_are_served_pages_say_so_and_all_goes_on_when_it_is_back(
    running: Installation, server: Postgres, ready: Server
) -> None:
    page, before = f"/servers/{ready.pk}/", RequestRecord.objects.count()
    with Caller(running) as caller, traffic(running, ready.deployment.served_model_name) as statuses:
        wait_for(caller.is_answered, "the pages to answer")
        form = caller.form_token(f"{page}stop/")
        wait_for_more(statuses)
        with gone(server):
            shown = caller.browser.get(page)
            acted = caller.browser.post(f"{page}stop/", data=form)
            asked = caller.program.post(f"/api/servers/{ready.pk}/stop")
            wait_for_more(statuses)
        wait_for(caller.is_answered, "the pages to answer again")
        wait_for_more(statuses)
    assert set(statuses) == {200}

    assert (shown.status_code, "The database does not answer" in shown.text) == (503, True)
    assert (acted.status_code, "What you asked for was not done." in acted.text) == (503, True)
    assert (asked.status_code, asked.json()["error"]["code"]) == (503, "unavailable")

    sent = statuses[200]
    wait_for(lambda: RequestRecord.objects.count() == before + sent, "the record of every request")
    fresh = Server.objects.get(pk=ready.pk)
    assert (fresh.state, fresh.generation, fresh.observed["pid"]) == (S.READY, 1, ready.observed["pid"])
    assert not AuditEntry.objects.filter(action="server.stop", target=f"server {ready.name}").exists()


def test_what_is_tried_every_second_says_only_once_that_the_database_is_away(
    running: Installation, server: Postgres, ready: Server
) -> None:
    seen = len(running.log("worker"))

    def said(words: str) -> bool:
        return words in running.log("worker")[seen:]

    with gone(server):
        for what in ("looking at what is due", "storing finished requests", "taking in reports of hosts"):
            wait_for(partial(said, f"{what}: waits"), f"a word about {what}")
    wait_for(partial(said, "looking at what is due: goes on"), "the worker to go on")
    assert running.log("worker")[seen:].count("looking at what is due: waits") == 1
    assert not said("raised unexpected")


def test_a_start_asked_for_after_it_came_back_is_done(running: Installation, server: Postgres) -> None:
    with gone(server):
        pass
    started = add_server(make_deployment(), "plain", 1)
    actions.start(started.pk, OPERATOR)
    wait_for_state(started, S.READY)
