"""API tokens: made by admins, shown once, looked up by their hash, taken back for good."""

from datetime import timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from console.accounts import audit
from console.accounts.access import refusal
from console.accounts.audit import Actor
from console.accounts.models import RANK, ApiToken, Role, User, digest
from console.accounts.secrets import terms
from console.fleet.errors import Forbidden, Invalid, NotFound

USE_NOTED_EVERY = timedelta(minutes=1)


def issue(
    actor: Actor, owner: User, name: str, scope: Role, expires_in_days: int | None = None
) -> tuple[ApiToken, str]:
    """The stored token of `owner` and its plain text, which exists only here. Raises Forbidden and Invalid."""
    if not actor.can(Role.ADMIN):
        raise Forbidden(refusal(Role.ADMIN))
    if not owner.can(scope):
        raise Invalid(f"{owner.username} is {owner.role}; a token cannot do more than its owner.", "scope")
    name, expires_at = terms(name, expires_in_days)
    with transaction.atomic():
        token, plain = ApiToken.issue(owner, name, scope, expires_at)
        audit.record(actor, "token.make", f"token {token.name}", after=_facts(token))
    return token, plain


def revoke(token_id: int, actor: Actor, user: User) -> ApiToken:
    """Takes a token back; a second time changes nothing. Raises NotFound for a token that `user` may not see."""
    with transaction.atomic():
        token = visible_to(user, actor).filter(pk=token_id).first()
        if token is None:
            raise NotFound("There is no such token.")
        if token.take_back():
            audit.record(actor, "token.revoke", f"token {token.name}", before=_facts(token))
    return token


def visible_to(user: User, actor: Actor) -> QuerySet[ApiToken]:
    """An admin sees everybody's tokens, others their own."""
    mine = Q() if actor.can(Role.ADMIN) else Q(user=user)
    return ApiToken.objects.filter(mine).select_related("user").order_by("-id")


def find(plain: str) -> ApiToken | None:
    """The token with this plain text, if it is valid and its owner may log in. Notes its use."""
    token = ApiToken.objects.select_related("user").filter(hashed=digest(plain)).first()
    if token is None or not token.is_valid() or not token.user.is_active:
        return None
    _note_use(token)
    return token


def actor(token: ApiToken) -> Actor:
    """A token acts with the lower of its scope and its owner's present role."""
    owner = audit.person(token.user)
    role = min(owner.role, Role(token.scope), key=RANK.__getitem__)
    return Actor(f"token:{token.name} of {owner.name}"[:150], role)


def _note_use(token: ApiToken) -> None:
    """At most one write a minute, however busy the token is."""
    now = timezone.now()
    not_lately = Q(last_used_at=None) | Q(last_used_at__lt=now - USE_NOTED_EVERY)
    if token.last_used_at is None or token.last_used_at < now - USE_NOTED_EVERY:
        ApiToken.objects.filter(not_lately, pk=token.pk).update(last_used_at=now)


def _facts(token: ApiToken) -> dict[str, str | None]:
    return {
        "owner": token.user.username,
        "scope": token.scope,
        "prefix": token.prefix,
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
    }
