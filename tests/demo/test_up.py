"""`manage.py up`: the console alone, to which hosts join."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import settings

from tests.own import held_port
from tests.running import RunningDemo
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.whole_demo


@pytest.fixture
def console(tmp_path: Path) -> Iterator[RunningDemo]:
    console = RunningDemo(tmp_path, command="up")
    try:
        yield console.wait_until_ready()
    finally:
        console.stop()


def names(console: RunningDemo) -> set[str]:
    """Of the parts that run."""
    marks = {mark.stem for mark in (console.data_dir / "run").glob("*.json")}
    return {name for name in marks if console.child_pid(name) is not None}


def test_it_runs_pages_worker_beat_and_a_broker_and_no_agent(console: RunningDemo) -> None:
    assert names(console) == {"web", "worker", "beat", "valkey"}
    assert httpx.get(f"{console.url}/healthz", timeout=LIMIT_S).status_code == 200
    assert "Log in" in httpx.get(f"{console.url}/", follow_redirects=True, timeout=LIMIT_S).text


def test_it_ends_without_a_trace(console: RunningDemo) -> None:
    console.stop()
    assert console.process.returncode == 0, console.output
    assert console.processes() == []


def test_it_says_what_is_missing_and_starts_all_the_same(tmp_path: Path) -> None:
    """A broker that answers, and somebody who can log in."""
    with held_port() as port:
        console = RunningDemo(tmp_path, command="up", REDIS_URL=f"redis://:secret@127.0.0.1:{port}/0")
        try:
            console.wait_until_ready()
            wait_until(lambda: "createperson NAME --role admin" in console.output, "it speaks of people")
            assert f"redis://127.0.0.1:{port}/0, does not answer" in console.output
            assert "secret" not in console.output
            assert names(console) >= {"web"}
        finally:
            console.stop()


def test_a_given_broker_is_used_instead_of_one_of_its_own(tmp_path: Path) -> None:
    console = RunningDemo(tmp_path, command="up", REDIS_URL=settings.REDIS_URL, REDIS_PREFIX="up-test")
    try:
        console.wait_until_ready()
        assert names(console) == {"web", "worker", "beat"}
    finally:
        console.stop()
