"""What a fresh start leaves on disk is for its own user alone."""

import os
import stat
import subprocess
import sys
from pathlib import Path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_data_folder_with_the_database_is_closed_to_other_users(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = {**os.environ, "DATA_DIR": str(data), "DATABASE_URL": "", "DJANGO_SETTINGS_MODULE": "console.settings"}
    subprocess.run(
        [sys.executable, "-c", "import os; os.umask(0o022); import django; django.setup()"], env=env, check=True
    )
    assert mode_of(data) == 0o700
