"""`manage.py changeperson olga --role admin`, `--password`, `--off`: changes the account of a person."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.accounts import people
from console.accounts.management.passwords import add_password_option, read_password
from console.accounts.models import Role
from console.fleet.errors import FleetError


class Command(BaseCommand):
    help = "Changes the role or the password of a person, or switches the account off and on."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("--role", choices=Role.values)
        parser.add_argument("--password", action="store_true", help="ask for a new password; ends the person's logins")
        add_password_option(parser)
        switch = parser.add_mutually_exclusive_group()
        switch.add_argument("--off", dest="active", action="store_false", default=None, help="no login, no tokens")
        switch.add_argument("--on", dest="active", action="store_true", default=None)

    def handle(
        self,
        *args: Any,
        username: str,
        role: str | None,
        password: bool,
        password_stdin: bool,
        active: bool | None,
        **options: Any,
    ) -> None:
        if role is None and active is None and not (password or password_stdin):
            raise CommandError("Say what to change: --role, --password, --off or --on.")
        new = read_password(password_stdin) if password or password_stdin else None
        try:
            person = people.change(
                people.COMMAND_LINE, username, role=Role(role) if role else None, password=new, active=active
            )
        except FleetError as error:
            raise CommandError(error.message) from error
        state = "can log in" if person.is_active else "cannot log in"
        self.stdout.write(f"{username} {state} as {person.role}.")
