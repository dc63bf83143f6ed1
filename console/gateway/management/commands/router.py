"""`manage.py router`: the router alone, without database and broker."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from routing import command


class Command(BaseCommand):
    help = "Run the router alone in front of the servers that you name. All options: manage.py router --help"
    requires_system_checks = []

    def run_from_argv(self, argv: list[str]) -> None:
        """The router reads its own command line, the same as `python -m routing`."""
        sys.exit(command.main(argv[2:]))

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        raise NotImplementedError("the router reads its own command line")

    def handle(self, *args: Any, **options: Any) -> None:
        sys.exit(command.main(list(args)))
