"""`manage.py makejointoken gpu01` prints a join token for one machine, once, or keeps it in a file."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.accounts import join_tokens, people
from console.fleet.errors import FleetError


class Command(BaseCommand):
    help = "Makes join tokens, each for one machine of that name, good for a day."

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("host", nargs="+", help="name of the host that may join")
        add("--into", type=Path, metavar="DIR", help="write each to a file DIR/HOST instead of printing it; a file "
            "whose token is unused, or has let its host in, stays as it is")  # fmt: skip

    def handle(self, *args: Any, host: list[str], into: Path | None, **options: Any) -> None:
        for name in host:
            try:
                self._make(name, into / name if into else None)
            except FleetError as error:
                raise CommandError(error.message) from error

    def _make(self, host: str, file: Path | None) -> None:
        if file is None:
            self.stdout.write(join_tokens.issue(people.COMMAND_LINE, host, host)[1])
        elif not join_tokens.still_counts(_read(file)):
            _, plain = join_tokens.issue(people.COMMAND_LINE, host, host)
            _write(file, plain)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def _write(file: Path, plain: str) -> None:
    """Whole or not at all."""
    draft = file.with_name(f"{file.name}.new")
    draft.touch(mode=0o600)
    draft.write_text(plain)
    draft.replace(file)
