"""`manage.py router`: the router alone, without database and broker."""

import sys
from typing import Any

from django.core.management.base import BaseCommand

from routing import command

PROGRAM = "manage.py router"


class Command(BaseCommand):
    help = "Run the router alone in front of the servers that you name. All options: manage.py router --help"
    requires_system_checks = []

    def run_from_argv(self, argv: list[str]) -> None:
        """The router reads its own command line, the same as `python -m routing`."""
        sys.exit(command.main(argv[2:], PROGRAM))

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Of `manage.py help router`."""
        command.parse(["--help"], PROGRAM)

    def handle(self, *args: Any, **options: Any) -> None:
        sys.exit(command.main(list(args), PROGRAM))
