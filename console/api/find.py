"""What a path or a filter names. In a path an unknown name is 404, in a body or a filter it is 400 with the field."""

from typing import TypeVar

from django.db.models import Model, QuerySet

from console.fleet.errors import Invalid, NotFound
from console.fleet.models import Deployment, Host

M = TypeVar("M", bound=Model)


def host(name: str) -> Host:
    return _in_path(Host.objects.all(), name, "host")


def deployment(name: str) -> Deployment:
    return _in_path(Deployment.objects.all(), name, "deployment")


def given_host(name: str) -> Host:
    return _in_field(Host.objects.all(), name, "host")


def given_deployment(name: str) -> Deployment:
    return _in_field(Deployment.objects.all(), name, "deployment")


def _in_path(rows: QuerySet[M], name: str, word: str) -> M:
    found = _named(rows, name)
    if found is None:
        raise NotFound(f"There is no {word} named {name!r}.")
    return found


def _in_field(rows: QuerySet[M], name: str, word: str) -> M:
    found = _named(rows, name)
    if found is None:
        raise Invalid(f"There is no {word} named {name!r}.", word)
    return found


def _named(rows: QuerySet[M], name: str) -> M | None:
    """A NUL character in a query would be an error of PostgreSQL."""
    return None if "\0" in name else rows.filter(name=name).first()
