"""The passwords of the compose file's Valkey and PostgreSQL: made once, in a volume, and in no file of the project.

Every container of the volume runs as a user of its own, so the files are for all who see the volume, and the volume is
for those services only that need it. The hosts' containers do not have it.
"""

from pathlib import Path

from console.kept import kept

FOR_ALL = 0o644


def make(folder: Path) -> None:
    """May run again, also after a crash half-way: the passwords stay, everything else follows from them."""
    folder.mkdir(parents=True, exist_ok=True)
    valkey = kept(folder / "valkey_password", FOR_ALL)
    postgres = kept(folder / "postgres_password", FOR_ALL)
    _write(folder / "valkey.conf", f'appendonly yes\nsave ""\nrequirepass {valkey}\n')
    _write(folder / "redis_url", f"redis://:{valkey}@valkey:6379/0\n")
    _write(folder / "database_url", f"postgres://switchyard:{postgres}@postgres/switchyard\n")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text)
    draft.chmod(FOR_ALL)
    draft.replace(path)
