"""`manage.py makepasswords DIR`: the passwords of a broker and a database in containers of their own."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from console.demo import passwords


class Command(BaseCommand):
    help = "Makes the passwords of Valkey and PostgreSQL once, and the files by which they and the console read them."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="where the files lie: valkey.conf, redis_url, database_url, …")

    def handle(self, *args: Any, folder: Path, **options: Any) -> None:
        passwords.make(folder)
