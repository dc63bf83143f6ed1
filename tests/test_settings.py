"""What the settings make of the environment, and what a fresh start leaves on disk: for its own user alone."""

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from console import settings


@pytest.mark.parametrize("password", ["p@ss", "a/b", "100%", "%41", "colon:", "#?[", "blank +", "ключ", "plain"])
def test_the_password_of_a_database_may_hold_what_an_address_cannot(password: str) -> None:
    made = settings.database(
        f"postgres://{quote('ann@site', safe='')}:{quote(password, safe='')}@db.example.org:5433/main"
    )
    assert (made["USER"], made["PASSWORD"]) == ("ann@site", password)
    assert (made["HOST"], made["PORT"], made["NAME"]) == ("db.example.org", "5433", "main")


SAID = "postgres://ann:secret@db.example.org/main"


def test_a_socket_folder_as_the_host_of_a_database_keeps_its_capitals() -> None:
    assert settings.database("postgres://%2FVar%2Frun%2Fpostgresql/main")["HOST"] == "/Var/run/postgresql"


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", {}),
        ("?", {}),
        ("?sslmode=require", {"sslmode": "require"}),
        ("?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem", {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}),
        ("?application_name=a+b%20c%3D%26", {"application_name": "a+b c=&"}),
        ("?connect_timeout=30", {"connect_timeout": "30"}),
    ],
)
def test_the_parameters_of_a_database_reach_its_driver(query: str, options: dict[str, str]) -> None:
    assert settings.database(SAID + query)["OPTIONS"] == {"connect_timeout": "5", **options}


def test_what_a_parameter_says_goes_before_the_same_part_of_the_address() -> None:
    made = settings.database(f"{SAID}?host=%2Frun%2Fpg&port=5433&user=bob&password=p%40&dbname=other")
    assert [made[name] for name in ("HOST", "PORT", "USER", "PASSWORD", "NAME")] == [
        "/run/pg",
        "5433",
        "bob",
        "p@",
        "other",
    ]
    assert made["OPTIONS"] == {"connect_timeout": "5"}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


MIGRATE = """
import os, pathlib
os.umask(0o022)
import django
django.setup()
from django.core.management import call_command
call_command("migrate", "gateway", verbosity=0)
files = pathlib.Path(os.environ["DATA_DIR"]).glob("switchyard.sqlite3*")
print({file.name: oct(file.stat().st_mode)[-3:] for file in files})
"""


def migrate(data: Path) -> dict[str, str]:
    """The modes of the database's files while it is open, by name."""
    env = {**os.environ, "DATA_DIR": str(data), "DATABASE_URL": "", "DJANGO_SETTINGS_MODULE": "console.settings"}
    run = subprocess.run([sys.executable, "-c", MIGRATE], env=env, check=True, capture_output=True, text=True)
    found: dict[str, str] = ast.literal_eval(run.stdout)
    return found


def test_a_new_database_is_closed_to_other_users(tmp_path: Path) -> None:
    files = migrate(tmp_path)
    assert {"switchyard.sqlite3", "switchyard.sqlite3-wal"} <= files.keys()
    assert set(files.values()) == {"600"}


def test_an_older_database_keeps_the_mode_that_somebody_gave_it(tmp_path: Path) -> None:
    migrate(tmp_path)
    (tmp_path / "switchyard.sqlite3").chmod(0o640)
    assert migrate(tmp_path)["switchyard.sqlite3"] == "640"


def test_the_data_folder_with_the_database_is_closed_to_other_users(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {**os.environ, "DATA_DIR": str(data), "DATABASE_URL": "", "DJANGO_SETTINGS_MODULE": "console.settings"}
    subprocess.run(
        [sys.executable, "-c", "import os; os.umask(0o022); import django; django.setup()"], env=env, check=True
    )
    assert mode_of(data) == 0o700
