"""What `manage.py` runs: Django's commands, with a line for a person where a setting or the database is in the way."""

import sys
from collections.abc import Sequence

from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import Error, ProgrammingError

from console import env
from console.database import Away, in_a_line


def main(argv: Sequence[str]) -> None:
    """Ends with status 1 and a line on standard error; with `--traceback` as Django does, with all of it."""
    try:
        execute_from_command_line(list(argv))
    except (env.BadSetting, *Away, ProgrammingError) as error:
        if "--traceback" in argv or is_our_fault(error):
            raise
        sys.exit(str(error) if isinstance(error, env.BadSetting) else in_words(error))


def is_our_fault(error: Exception) -> bool:
    """A statement that no database would take."""
    return isinstance(error, ProgrammingError) and not lacks_a_table(error)


def lacks_a_table(error: Exception) -> bool:
    """In the words of PostgreSQL, which has others for a database or a user that it does not know, or of SQLite."""
    said = in_a_line(error)
    return (isinstance(error, ProgrammingError) and "does not exist" in said) or "no such table" in said


def in_words(error: Error) -> str:
    said = in_a_line(error)
    if lacks_a_table(error):
        return f"The database lacks what this version keeps in it ({said}). Run: {sys.executable} manage.py migrate"
    if settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
        file = settings.DATABASES["default"]["NAME"]
        return f"The database {file} cannot be used: {said}. Look at the rights of file and folder, and at the disk."
    return (
        f"The database that DATABASE_URL names cannot be used: {said}. Check that it runs and takes connections from "
        "here, and that user, password and name are right."
    )
