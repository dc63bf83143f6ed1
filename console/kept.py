"""Secrets that are made once and kept in a file."""

import contextlib
import os
import secrets
from pathlib import Path


def kept(path: Path, mode: int = 0o600) -> str:
    """What the file holds; made the first time. Of processes that make it at once, all get the same.

    Whole or not at all: a crash half-way leaves no empty secret.
    """
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(secrets.token_urlsafe(48))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text().strip()
