"""The accounts of people: made and changed from the command line of the machine that runs the console."""

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction

from console.accounts import audit
from console.accounts.audit import Actor
from console.accounts.models import Role, User
from console.fleet.errors import Conflict, Invalid, NotFound

COMMAND_LINE = Actor("command line", Role.ADMIN)
"""Who can run a command on the console's machine can read its database: no role is asked for."""


def create(actor: Actor, username: str, password: str, role: Role) -> User:
    """Raises Conflict when the name is taken, Invalid for a name or password that will not do."""
    if User.objects.filter(username=username).exists():
        raise Conflict(f"There is a person named {username} already; `changeperson` changes role and password.")
    person = User(username=username, role=role)
    _set_password(person, password)
    try:
        person.full_clean()
    except ValidationError as error:
        raise Invalid(" ".join(error.messages), "username") from error
    with transaction.atomic():
        person.save()
        audit.record(actor, "person.create", f"person {username}", after=_facts(person))
    return person


def change(
    actor: Actor, username: str, *, role: Role | None = None, password: str | None = None, active: bool | None = None
) -> User:
    """None leaves a thing as it is. A new password ends that person's logins. Raises NotFound and Invalid."""
    with transaction.atomic():
        person = User.objects.select_for_update(no_key=True).filter(username=username).first()
        if person is None:
            raise NotFound(f"There is no person named {username}; `createperson` makes one.")
        before = _facts(person)
        if role is not None:
            person.role = role
        if active is not None:
            person.is_active = active
        if password is not None:
            _set_password(person, password)
        person.save(update_fields=["role", "is_active", "password"])
        after = {**_facts(person), **({"password": "changed"} if password is not None else {})}
        audit.record(actor, "person.change", f"person {username}", before, after)
    return person


def _set_password(person: User, password: str) -> None:
    try:
        validate_password(password, person)
    except ValidationError as error:
        raise Invalid(" ".join(error.messages), "password") from error
    person.set_password(password)


def _facts(person: User) -> dict[str, str | bool]:
    return {"role": person.role, "active": person.is_active}
