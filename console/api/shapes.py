"""The bases of everything that goes in and out, and lists in pages."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from ninja import Schema
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, ConfigDict, Field, StrictBool

from console.fleet.models import Server
from console.fleet.states import ServerRole, ServerState

M = TypeVar("M", bound=Model)
T = TypeVar("T")

MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d")
MAX_PAGE = 500
MAX_OFFSET = 10_000_000


def _without_nul(text: str) -> str:
    """PostgreSQL stores no NUL character; every database refuses it alike."""
    if "\0" in text:
        raise ValueError("A text cannot contain a NUL character.")
    return text


def _written_as_moment(value: Any) -> Any:
    """Numbers are refused: seconds or milliseconds since when, they do not say."""
    if isinstance(value, str) and not MOMENT.match(value):
        raise ValueError("Give a moment like 2026-03-01T12:00:00Z.")
    return value


def _that_databases_know(moment: datetime) -> datetime:
    """Around year 1 and 10 000 a change of time zone leaves what a datetime can hold."""
    if not 1970 <= moment.year < 9000:
        raise ValueError("Give a moment between 1970 and 9000.")
    return moment


Moment = Annotated[AwareDatetime, BeforeValidator(_written_as_moment), AfterValidator(_that_databases_know)]
"""With its time zone, as in 2026-03-01T12:00:00Z."""
Text = Annotated[str, AfterValidator(_without_nul)]


def _whole(value: Any) -> Any:
    """In JSON 3.0 is a whole number, and some programs write it so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=0, le=2_147_483_647)]
"""As far as a column of the database goes."""
Reason = Annotated[Text, Field(max_length=400, description="Why; it stands in the audit trail.")]


class Input(Schema):
    """What a body may hold. An unknown field is an error: a misspelt one would silently do nothing.

    Strict: "5" is not a number here, as the description says.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ChangeIn(Input):
    """The body of a change."""

    dry_run: StrictBool = Field(default=False, description="As the parameter of that name: either does.")


class ReasonIn(ChangeIn):
    """The body of a change that needs nothing but a word why."""

    reason: Reason = ""


NOTHING, NO_REASON = ChangeIn(), ReasonIn()
"""What a change gets that was sent without a body."""


class Paging(Schema):
    """Which part of a list. `count` always speaks of the whole."""

    limit: int = Field(50, ge=1, le=MAX_PAGE)
    offset: int = Field(0, ge=0, le=MAX_OFFSET)


class Page(Schema, Generic[T]):
    items: list[T]
    count: int


def page(rows: QuerySet[M], paging: Paging, show: Callable[[M], T]) -> dict[str, Any]:
    """What a `Page` is made of: the asked part, each row shown, and how many there are in all."""
    part = rows[paging.offset : paging.offset + paging.limit]
    return {"items": [show(row) for row in part], "count": rows.count()}


def given(filters: Paging) -> dict[str, Any]:
    """The filters that were sent, by name, without the paging."""
    return filters.dict(exclude_none=True, exclude={"limit", "offset"})


class Deleted(Schema):
    deleted: str = Field(description="What is gone: `server chat-1`, …")


class ServerRef(Schema):
    """A server, named where it belongs to something else."""

    id: int
    name: str
    role: ServerRole
    state: ServerState


def server_refs(servers: Iterable[Server]) -> list[ServerRef]:
    return [ServerRef.from_orm(server) for server in servers]
