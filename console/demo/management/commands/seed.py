"""`manage.py seed`: fills a running console for the demo. `manage.py demo` calls it."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.demo import plans
from console.demo.seed import SeedFailed, read_password, ready_line, seed, write_demo_file
from console.fleet.errors import FleetError


class Command(BaseCommand):
    help = "Makes the admin, a deployment and its servers, waits until they serve, and writes the demo's file."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--url", required=True, help="where people reach the console")
        parser.add_argument("--host", required=True, help="name of the host to launch on")
        parser.add_argument("--since", required=True, type=float, help="Unix time; the host's agent started later")
        parser.add_argument("--file", required=True, type=Path, help="the file to write; the password in it is kept")

        parser.add_argument("--tell", action="store_true", help="print address and login when done")

    def handle(self, *args: Any, url: str, host: str, since: float, file: Path, tell: bool, **options: Any) -> None:
        try:
            demo = seed(plans.from_environment(), host, since, url, read_password(file.with_suffix(".last")))
        except (SeedFailed, FleetError) as error:
            raise CommandError(str(error)) from error
        write_demo_file(file, demo)
        if tell:
            self.stdout.write(ready_line(demo))
