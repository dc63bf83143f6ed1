"""`make test` runs each part once, goes on after a part that failed, and fails then."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = [
    "-m not real_engine and not browser and not whole_demo",
    "-m browser",
    "-m whole_demo",
    "tests/routing tests/gateway",
]
"""What tells the runs of `make test` from each other."""

PYTHON = """#!/bin/sh
echo "$*" >>"$ASKED"
case "$*" in *"$FAILING"*) exit 1 ;; esac
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Counts as installed; its Python only writes down what it is asked for."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    wanted = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    (tmp_path / ".requirements.sha256").write_text(wanted + "\n")
    return tmp_path


def make_test(venv: Path, failing: str) -> tuple[int, list[str]]:
    """The exit status, and each call of pytest. What has `failing` in its arguments fails."""
    asked = venv / "asked"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    # The prerequisites are not what is tried: `-o` takes them as made.
    done = subprocess.run(
        ["make", "-o", "install-npm", "-o", "test-tools", "test", f"VENV={venv}"],
        cwd=ROOT,
        env=environment | {"ASKED": str(asked), "FAILING": failing},
        capture_output=True,
        timeout=300,
    )
    return done.returncode, [call for call in asked.read_text().splitlines() if call.startswith("-m pytest")]


@pytest.mark.parametrize("failing", PARTS)
def test_one_failed_part_fails_it_and_nothing_runs_again(venv: Path, failing: str) -> None:
    status, calls = make_test(venv, failing)
    assert status != 0
    assert [sum(part in call for call in calls) for part in PARTS] == [1, 1, 1, 1]


def test_it_succeeds_when_every_part_does(venv: Path) -> None:
    status, calls = make_test(venv, failing="nothing that is asked for")
    assert (status, len(calls)) == (0, 4)
