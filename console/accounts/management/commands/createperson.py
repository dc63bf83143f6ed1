"""`manage.py createperson olga --role operator` asks for a password and makes the account."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.accounts import people
from console.accounts.management.passwords import add_password_option, read_password
from console.accounts.models import Role
from console.fleet.errors import FleetError


class Command(BaseCommand):
    help = "Makes the account of a person: a viewer sees, an operator moves and launches, an admin may do everything."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--role", choices=Role.values, default=Role.VIEWER, help="viewer unless given")
        add_password_option(parser)

    def handle(self, *args: Any, username: str, role: str, password_stdin: bool, **options: Any) -> None:
        password = read_password(password_stdin)
        try:
            people.create(people.COMMAND_LINE, username, password, Role(role))
        except FleetError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{username} can log in as {role}.")
