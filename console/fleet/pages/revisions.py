"""The revisions of a deployment, each with what it changed."""

from dataclasses import dataclass
from itertools import zip_longest

from console.fleet.models import Deployment, Revision
from console.words import in_words


@dataclass(frozen=True)
class Change:
    field: str
    before: str
    after: str


@dataclass(frozen=True)
class ToldRevision:
    """`changes` against the revision before; the first one has none."""

    revision: Revision
    changes: list[Change]
    is_present: bool


def told_revisions(deployment: Deployment) -> list[ToldRevision]:
    """Newest first."""
    kept = list(deployment.revisions.order_by("-number"))
    return [
        ToldRevision(revision, _changes(before, revision), revision.number == deployment.revision)
        for revision, before in zip_longest(kept, kept[1:])
    ]


def _changes(before: Revision | None, after: Revision) -> list[Change]:
    if before is None:
        return []
    return [
        Change(field.replace("_", " "), in_words(before.settings.get(field)) or "none", in_words(value) or "none")
        for field, value in after.settings.items()
        if before.settings.get(field) != value
    ]
