"""The router serves on while Valkey and the database are away, and what it saw meanwhile arrives later."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.test import Client
from pytest_django import Settings

from console.accounts.models import AuditEntry, Role
from console.embedded import EmbeddedValkey
from console.fleet.models import Host
from console.gateway.models import Epoch
from console.slots import Receive, Scope, Send
from console.traffic import tasks
from console.traffic.models import RequestRecord
from tests.factories import make_host, make_user
from tests.gateway.engines import completion, deploy, register
from tests.own import free_port
from tests.simulator.harness import SimulatedServer
from tests.waiting import LIMIT_S, wait_until
from tests.web import RunningWeb, receive, receive_event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def plain() -> Iterator[SimulatedServer]:
    with SimulatedServer("plain", env={"SIMULATOR_SPEED": "1"}) as engine:
        yield engine


@pytest.fixture
def own_valkey(tmp_path: Path, settings: Settings) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(tmp_path, free_port())
    server.start()
    settings.REDIS_URL = server.url
    yield server
    server.stop()


@contextmanager
def locked_database() -> Iterator[None]:
    """Nobody can change a row meanwhile; on PostgreSQL nobody can read the routing epoch either."""
    lock = sqlite_lock() if connection.vendor == "sqlite" else postgres_lock()
    with lock:
        yield


@contextmanager
def sqlite_lock() -> Iterator[None]:
    path = str(connection.settings_dict["NAME"])
    with closing(sqlite3.connect(path, isolation_level=None, timeout=LIMIT_S)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def postgres_lock() -> Iterator[None]:
    tables = ", ".join(model._meta.db_table for model in (Epoch, AuditEntry))
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
        yield
        cursor.execute("ROLLBACK")


def ask(web: RunningWeb, tokens: int = 5) -> str:
    """The id of a request that went well."""
    answer = web.client.post("/v1/completions", json=completion(tokens=tokens))
    assert answer.status_code == 200
    assert "data: [DONE]" in answer.text
    return answer.headers["x-request-id"]


def arrived(request_id: str) -> bool:
    tasks.take_records()
    return RequestRecord.objects.filter(request_id=request_id).exists()


def test_without_valkey_requests_are_served_and_their_records_arrive_later(
    own_valkey: EmbeddedValkey, plain: SimulatedServer
) -> None:
    register(plain, deploy(), "plain-1")
    with RunningWeb() as web:
        before = ask(web)
        own_valkey.stop()
        meanwhile = [ask(web) for _ in range(3)]
        own_valkey.start()
        for request_id in (before, *meanwhile):
            wait_until(lambda request_id=request_id: arrived(request_id), "its record")  # type: ignore[misc]
        assert web.services.reports.records.dropped == 0


def test_a_socket_lives_on_when_valkey_comes_back(own_valkey: EmbeddedValkey, plain: SimulatedServer) -> None:
    register(plain, deploy(), "plain-1")
    with RunningWeb() as web, web.socket("chat", make_user(Role.VIEWER)) as connection:
        receive(connection)
        own_valkey.stop()
        meanwhile = ask(web)
        own_valkey.start()
        assert receive_event(connection, {"type": "ttft"})["request_id"] == meanwhile


def test_with_a_locked_database_requests_are_served(own_valkey: EmbeddedValkey, plain: SimulatedServer) -> None:
    register(plain, deploy(), "plain-1")
    with RunningWeb() as web:
        with locked_database():
            meanwhile = ask(web)
        wait_until(lambda: arrived(meanwhile), "its record")


@contextmanager
def waits_briefly_for_locks() -> Iterator[None]:
    """On the test's own connection, where a client without sockets runs. SQLite's 20 s are long for a test."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 200" if connection.vendor == "sqlite" else "SET lock_timeout = 200")
    try:
        yield
    finally:
        connection.close()  # The next one waits as long as ever.


def test_a_change_while_the_database_is_locked_is_refused_and_leaves_no_trace(valkey: object) -> None:
    host, admin = make_host("gpu01"), Client()
    admin.force_login(make_user(Role.ADMIN))
    with waits_briefly_for_locks(), locked_database():
        refused = admin.post("/hosts/gpu01/maintenance/", {"on": "1"})
        shown = admin.get("/hosts/gpu01/")
    assert (refused.status_code, "What you asked for was not done." in refused.text) == (503, True)
    assert shown.status_code == 200
    assert not Host.objects.get(pk=host.pk).maintenance
    assert not AuditEntry.objects.filter(action="host.maintenance").exists()
    assert admin.post("/hosts/gpu01/maintenance/", {"on": "1"}).status_code == 302
    assert Host.objects.get(pk=host.pk).maintenance


def test_a_restart_without_a_database_serves_what_was_served_before(
    own_valkey: EmbeddedValkey, plain: SimulatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(plain, deploy(), "plain-1")
    with RunningWeb() as web:
        ask(web)
    own_valkey.stop()
    monkeypatch.setitem(connection.settings_dict, "NAME", "/nowhere/at/all.sqlite3")
    with RunningWeb() as web:
        ask(web)


WAITS_FOR_LOCK_S = 20
"""Whoever wants the locked database (`console/settings.py`)."""


def change_a_row() -> None:
    Epoch.bump()
    connections.close_all()


async def page_that_writes(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands for any page that needs the locked database."""
    await receive()
    await sync_to_async(change_a_row)()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_pages_that_wait_for_the_database_stall_no_stream(own_valkey: EmbeddedValkey, plain: SimulatedServer) -> None:
    """Twelve pages hang for as long as the lock is held, which is longer than the stream lasts."""
    register(plain, deploy(), "plain-1")
    answers: list[int] = []

    def load_page() -> None:
        answers.append(web.client.get("/any/page/").status_code)

    with RunningWeb(page_that_writes) as web:
        pages = [threading.Thread(target=load_page) for _ in range(12)]
        with locked_database():
            for page in pages:
                page.start()
            request_id = ask(web, tokens=100)  # one and a half seconds
            assert answers == []
        for page in pages:
            page.join()
        assert set(answers) == {204}
        wait_until(lambda: arrived(request_id), "its record")
    record: Any = RequestRecord.objects.get(request_id=request_id)
    assert record.max_gap_ms < WAITS_FOR_LOCK_S * 1000 / 2
