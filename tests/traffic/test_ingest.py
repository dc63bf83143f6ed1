"""Finished requests reach the database once each, whatever crashes in between."""

from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import OperationalError
from django.utils import timezone
from pytest_django import Settings

from console.traffic import ingest, tasks, wire
from console.traffic.models import RequestRecord
from tests.factories import make_deployment
from tests.traffic.requests import finished, send, store

pytestmark = pytest.mark.django_db


def test_a_finished_request_is_stored_with_its_deployment(valkey: "redis.Redis") -> None:
    deployment = make_deployment("chat", served_model_name="tiny")
    send(valkey, finished(request_id="abc"))
    assert tasks.take_records() == 1
    record = RequestRecord.objects.get(request_id="abc")
    assert (record.deployment, record.model) == (deployment, "tiny")
    assert (record.prefill_server, record.decode_server_id) == ("prefill-1", 2)
    assert (record.first_token_ms, record.gaps_ms, record.max_gap_ms) == (100.0, [30.0, 30.0, 30.0], 30.0)


def test_the_record_of_a_deleted_deployment_is_kept(valkey: "redis.Redis") -> None:
    send(valkey, finished(deployment="gone"))
    tasks.take_records()
    assert RequestRecord.objects.get().deployment is None


def test_a_request_that_is_delivered_twice_is_stored_once(valkey: "redis.Redis") -> None:
    send(valkey, finished(request_id="abc"), finished(request_id="abc"))
    tasks.take_records()
    assert RequestRecord.objects.count() == 1


def test_nothing_is_left_in_valkey(valkey: "redis.Redis") -> None:
    send(valkey, finished())
    tasks.take_records()
    assert valkey.xlen(wire.stream()) == 0
    pending: Any = valkey.xpending(wire.stream(), ingest.GROUP)
    assert pending["pending"] == 0


def test_a_backlog_is_taken_in_one_go(valkey: "redis.Redis") -> None:
    send(valkey, *(finished() for _ in range(ingest.BATCH + 20)))
    assert tasks.take_records() == ingest.BATCH + 20
    assert RequestRecord.objects.count() == ingest.BATCH + 20


def test_while_the_database_is_away_nothing_is_taken_and_all_is_stored_at_once_when_it_is_back(
    valkey: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    send(valkey, finished(request_id="abc"))

    def fail() -> None:
        raise OperationalError("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_deployments", fail)
        assert tasks.take_records() == 0
    assert tasks.take_records() == 1
    assert RequestRecord.objects.filter(request_id="abc").exists()


def test_what_a_crashed_worker_took_is_taken_over(valkey: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    send(valkey, finished(request_id="abc"))

    def crash(_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(ingest, "_save", crash)
        with pytest.raises(MemoryError):
            tasks.take_records()
    assert tasks.take_records() == 0  # the other worker may still be at it
    monkeypatch.setattr(ingest, "RECLAIM_AFTER_MS", 0)
    assert tasks.take_records() == 1
    assert RequestRecord.objects.filter(request_id="abc").exists()


def test_an_entry_that_cannot_be_read_does_not_hold_up_the_others(
    valkey: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    valkey.xadd(wire.stream(), {"r": "{"})
    valkey.xadd(wire.stream(), {"r": "[1]"})
    valkey.xadd(wire.stream(), {"other": "1"})
    send(valkey, finished(received_at="yesterday"), finished(request_id="good"))
    assert tasks.take_records() == 5
    assert [record.request_id for record in RequestRecord.objects.all()] == ["good"]
    assert caplog.text.count("cannot be read") == 4


def test_an_entry_without_an_outcome_is_left_out_and_said(
    valkey: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    send(valkey, finished(request_id="bad", outcome=None), finished(request_id="good"))
    tasks.take_records()
    assert [record.request_id for record in RequestRecord.objects.all()] == ["good"]
    assert "cannot be read" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_row_that_the_database_refuses_does_not_hold_up_the_others(
    valkey: "redis.Redis", caplog: pytest.LogCaptureFixture
) -> None:
    send(valkey, finished(request_id="bad", prompt_tokens="many"), finished(request_id="good"))
    tasks.take_records()
    assert [record.request_id for record in RequestRecord.objects.all()] == ["good"]
    assert "cannot be stored" in caplog.text


def test_long_texts_are_cut_to_their_columns(valkey: "redis.Redis") -> None:
    send(valkey, finished(error="x" * 1000 + "\x00", reason="y" * 1000))
    tasks.take_records()
    record = RequestRecord.objects.get()
    assert (len(record.error), len(record.reason)) == (400, 200)


def test_nothing_happens_while_valkey_is_away(settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert tasks.take_records() == 0


def test_old_records_are_forgotten(settings: Settings) -> None:
    settings.RECORDS_KEPT_DAYS = 14
    old, recent = store(request_id="old"), store(request_id="recent")
    RequestRecord.objects.filter(pk=old.pk).update(received_at=timezone.now() - timedelta(days=15))
    RequestRecord.objects.filter(pk=recent.pk).update(received_at=timezone.now() - timedelta(days=13))
    assert tasks.prune() == 1
    assert RequestRecord.objects.get() == recent


def test_many_old_records_are_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PRUNE_BATCH", 2)
    for _ in range(5):
        store()
    RequestRecord.objects.update(received_at=timezone.now() - timedelta(days=900))
    assert tasks.prune() == 5
