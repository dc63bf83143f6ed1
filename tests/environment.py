"""Loaded before Django (`-p tests.environment`): a data folder and a Valkey of its own for each test process."""

import os
import shutil
import tempfile
from pathlib import Path

os.environ["DATA_DIR"] = tempfile.mkdtemp(prefix="switchyard-test-")
os.environ["DATABASE_URL"] = os.environ.get("TEST_DATABASE_URL", "")  # empty: SQLite

from console.embedded import EmbeddedValkey
from tests.own import free_port

VALKEY = EmbeddedValkey(Path(os.environ["DATA_DIR"]) / "valkey", free_port(), persistent=False)
VALKEY.start()
os.environ["REDIS_URL"] = VALKEY.url


def pytest_unconfigure() -> None:
    VALKEY.stop()
    shutil.rmtree(os.environ["DATA_DIR"], ignore_errors=True)
