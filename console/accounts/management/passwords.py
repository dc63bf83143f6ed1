"""How commands take a password: asked for twice, or one line of standard input. Never an argument, which others see."""

import getpass
import sys

from django.core.management.base import CommandError, CommandParser


def add_password_option(parser: CommandParser) -> None:
    parser.add_argument(
        "--password-stdin", action="store_true", help="take the password from the first line of standard input"
    )


def read_password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise CommandError("There is no terminal to ask for a password: use --password-stdin.")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Once more: ") != password:
        raise CommandError("The two did not match; nothing was changed.")
    return password
