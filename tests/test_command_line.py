"""Commands end with a line for a person, not a traceback, where a setting or the database is in the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import OperationalError, ProgrammingError

from console.command_line import in_words, is_our_fault
from tests.own import free_port, held_port
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parent.parent
CREATE = ("createperson", "ada", "--password-stdin")
UNKNOWN = "DATABASE_URL: PostgreSQL knows no parameter"
NOBODY_LISTENS = "postgres://user:secret@127.0.0.1:1/name"


def manage(data: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(data, "manage.py", *words, **environment)


def run(data: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "DATA_DIR": str(data), "DATABASE_URL": "", "PORT": str(free_port()), **environment},
        input="long enough to keep\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("LOG_LEVEL=foo", "LOG_LEVEL='foo': expected DEBUG, INFO, WARNING, ERROR or CRITICAL"),
        ("RECORDS_KEPT_DAYS=many", "RECORDS_KEPT_DAYS='many': expected a whole number"),
        ("DATABASE_URL=nonsense", "DATABASE_URL: expected postgres://user:password@host:port/name, or nothing"),
        ("DATABASE_URL=postgres://u:p@127.0.0.1:port/n", "DATABASE_URL: expected postgres://"),
        ("DATABASE_URL=postgres://127.0.0.1", "DATABASE_URL: expected postgres://"),
        ("DATABASE_URL=postgres://u:p%23a#b@127.0.0.1/n", "DATABASE_URL: expected postgres://"),
        ("DATABASE_URL=postgres://127.0.0.1/n?password=a#b", "DATABASE_URL: expected postgres://"),
        ("DATABASE_URL=postgres://127.0.0.1/n?sslmod=s&pool=s", f"{UNKNOWN} 'pool', 'sslmod'. Use the names of its"),
        ("DATABASE_URL=postgres://127.0.0.1/n?sslmode", "DATABASE_URL: the parameter 'sslmode' has no value"),
        (
            "DATABASE_URL=postgres://127.0.0.1/n?connect_timeout=5s",
            "DATABASE_URL: the parameter 'connect_timeout' must",
        ),
        ("DATA_DIR=/proc/nowhere", "DATA_DIR='/proc/nowhere': no folder can be made there"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(setting: str, said: str, tmp_path: Path) -> None:
    name, _, value = setting.partition("=")
    ended = manage(tmp_path, "createperson", "--help", **{name: value})
    assert ended.returncode == 1
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["check", "up", "demo"])
def test_a_parameter_that_the_database_does_not_know_is_named_before_anything_is_asked_of_it(
    command: str, tmp_path: Path
) -> None:
    ended = manage(tmp_path, command, DATABASE_URL=f"{NOBODY_LISTENS}?sslmod=require&sslpassword=secret")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert ended.stderr.startswith(f"{UNKNOWN} 'sslmod'.")
    assert "secret" not in ended.stderr


@pytest.mark.parametrize("part", ["worker", "beat"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("LOG_LEVEL=foo", "LOG_LEVEL='foo': expected DEBUG, INFO, WARNING, ERROR or CRITICAL"),
        ("REDIS_URL=redis://:secret@host:port/0", "REDIS_URL is not the address of a Redis or Valkey. Give redis://"),
        ("DATABASE_URL=postgres://h/n?sslmod=secret", f"{UNKNOWN} 'sslmod'."),
    ],
)
def test_celery_started_by_hand_names_a_wrong_setting_in_one_line(
    part: str, setting: str, said: str, tmp_path: Path
) -> None:
    name, _, value = setting.partition("=")
    ended = run(tmp_path, "-m", "celery", "-A", "console.celery", part, **{name: value})
    assert ended.returncode == 1
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stdout + ended.stderr


def test_a_demo_without_its_broker_ends_before_anything_starts(tmp_path: Path) -> None:
    with held_port() as port:
        ended = manage(tmp_path, "demo", REDIS_URL=f"redis://user:secret@127.0.0.1:{port}/0")
    assert ended.returncode == 1
    assert f"The broker that REDIS_URL names, redis://127.0.0.1:{port}/0, does not answer: " in ended.stderr
    assert "Start it, correct REDIS_URL, or unset it" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert (ended.stdout, list((tmp_path / "run").glob("*.json"))) == ("", [])
    assert "secret" not in ended.stderr


def test_a_level_of_logging_may_be_written_in_small_letters(tmp_path: Path) -> None:
    assert manage(tmp_path, "createperson", "--help", LOG_LEVEL="debug").returncode == 0


@pytest.mark.parametrize("words", [CREATE, ("up",)])
def test_a_database_that_does_not_answer_is_told_in_one_line_without_its_password(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    ended = manage(tmp_path, *words, DATABASE_URL=NOBODY_LISTENS)
    assert ended.returncode == 1
    assert ended.stderr.startswith("The database that DATABASE_URL names cannot be used: ")
    assert "Connection refused. Check that it runs" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stderr


def test_a_database_without_tables_is_told_with_the_command_that_makes_them(tmp_path: Path) -> None:
    ended = manage(tmp_path, *CREATE)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert f"Run: {sys.executable} manage.py migrate" in ended.stderr
    assert "manage.py migrate" in in_words(ProgrammingError('relation "accounts_user" does not exist\nLINE 1: SELECT'))
    assert "manage.py migrate" not in in_words(OperationalError('database "name" does not exist'))


def test_all_of_it_is_there_for_who_asks(tmp_path: Path) -> None:
    assert "Traceback" in manage(tmp_path, *CREATE, "--traceback").stderr


def test_a_statement_that_no_database_takes_is_not_blamed_on_it() -> None:
    assert is_our_fault(ProgrammingError('syntax error at or near "SELEKT"'))
    assert not is_our_fault(OperationalError("database is locked"))
