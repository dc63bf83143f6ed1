"""Health checks look at the time of one file: who touches it, and when."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.signals import after_task_publish, beat_init
from django.conf import settings

from console import alive
from console.launch import tasks
from console.launch.reporter import ReportChannel


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "alive"
    monkeypatch.setenv("ALIVE_FILE", str(path))
    return path


def test_without_the_setting_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALIVE_FILE", raising=False)
    alive.show()


def test_a_folder_that_cannot_be_written_stops_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIVE_FILE", str(tmp_path / "absent" / "alive"))
    alive.show()


def test_the_worker_shows_it_at_each_tick(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.launch.tick.tick", lambda: None)
    tasks.tick()
    assert file.exists()


def test_an_agent_shows_it_with_a_report_that_the_broker_took(file: Path, valkey: "redis.Redis") -> None:
    report: Any = {}
    ReportChannel(settings.REDIS_URL, "some channel").publish(report)
    assert file.exists()


def test_an_agent_without_a_broker_shows_nothing(file: Path) -> None:
    report: Any = {}
    with pytest.raises(redis.ConnectionError):
        ReportChannel("redis://127.0.0.1:1/0", "some channel").publish(report)
    assert not file.exists()


def test_beat_shows_it_with_each_task_that_it_sends(file: Path) -> None:
    known = list(after_task_publish.receivers)
    try:
        beat_init.send(sender=None)
        after_task_publish.send(sender="console.tick")
    finally:
        after_task_publish.receivers[:] = known
    assert file.exists()


def test_only_beat_shows_it_for_sending(file: Path) -> None:
    after_task_publish.send(sender="console.tick")
    assert not file.exists()


def test_it_needs_no_settings_of_django(file: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    code = "from console.launch import reporter; reporter.alive.show()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert file.exists()
