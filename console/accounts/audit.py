"""Writes the audit trail. Call it inside the transaction that makes the change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console.accounts.models import RANK, AuditEntry, Role, User


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a person in the browser, a token, or the product itself."""

    name: str
    role: Role

    def can(self, role: Role) -> bool:
        return RANK[self.role] >= RANK[role]


SYSTEM = Actor("system", Role.ADMIN)


def person(user: User) -> Actor:
    return Actor(user.username, Role.ADMIN if user.is_superuser else Role(user.role))


def record(
    actor: Actor,
    action: str,
    target: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
) -> AuditEntry:
    return AuditEntry.objects.create(
        actor=actor.name,
        action=action,
        target=target,
        before=dict(before or {}),
        after=dict(after or {}),
        reason=reason[:400],
    )
