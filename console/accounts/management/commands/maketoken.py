"""`manage.py maketoken olga --name ci --scope operator --days 30` prints an API token, once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from console.accounts import people, tokens
from console.accounts.models import Role, User
from console.fleet.errors import FleetError


class Command(BaseCommand):
    help = "Makes an API token that acts as a person, and prints it. It is not shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", help="whose token it is")
        parser.add_argument("--name", required=True, help="what it is for")
        parser.add_argument("--scope", choices=Role.values, default=Role.VIEWER, help="viewer unless given")
        parser.add_argument("--days", type=int, help="how long it works; without end unless given")

    def handle(self, *args: Any, username: str, name: str, scope: str, days: int | None, **options: Any) -> None:
        owner = User.objects.filter(username=username, is_active=True).first()
        if owner is None:
            raise CommandError(f"There is no active person named {username}; `createperson` makes one.")
        try:
            _, plain = tokens.issue(people.COMMAND_LINE, owner, name, Role(scope), days)
        except FleetError as error:
            raise CommandError(error.message) from error
        self.stdout.write(plain)
