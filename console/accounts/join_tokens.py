"""Join tokens: made by admins, shown once, good for machines that join as hosts."""

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from console.accounts import audit
from console.accounts.access import refusal
from console.accounts.audit import Actor
from console.accounts.models import JoinToken, Role, digest
from console.accounts.secrets import terms
from console.fleet.errors import Forbidden, Invalid, NotFound, Unauthorized
from console.fleet.models import name_validator

NEW_ONE = "Ask an admin for a new one: they make it on the page that adds a host."


def issue(
    actor: Actor, name: str, host_name: str = "", single_use: bool = True, expires_in_days: int | None = None
) -> tuple[JoinToken, str]:
    """The stored token and its plain text, which exists only here. Raises Forbidden and Invalid."""
    _check_may(actor)
    name, expires_at = terms(name, expires_in_days)
    host_name = _checked_host_name(host_name)
    with transaction.atomic():
        token, plain = JoinToken.issue(actor.name, name, host_name, single_use, expires_at)
        audit.record(actor, "join_token.make", f"join token {token.name}", after=_facts(token))
    return token, plain


def revoke(token_id: int, actor: Actor) -> JoinToken:
    """No machine joins with it any more; those that have joined stay. A second time changes nothing."""
    _check_may(actor)
    with transaction.atomic():
        token = JoinToken.objects.filter(pk=token_id).first()
        if token is None:
            raise NotFound("There is no such join token.")
        if token.take_back():
            audit.record(actor, "join_token.revoke", f"join token {token.name}", before=_facts(token))
    return token


def newest_first() -> QuerySet[JoinToken]:
    return JoinToken.objects.prefetch_related("logins__host").order_by("-id")


def find(plain: str) -> JoinToken:
    """The token with this plain text, used up or not. Raises Unauthorized, its code says what is wrong with it."""
    token = JoinToken.objects.filter(hashed=digest(plain)).first()
    if token is None:
        raise Unauthorized(f"This join token is unknown. Copy the whole command, or {_lower(NEW_ONE)}", "token_unknown")
    if token.revoked_at is not None:
        raise Unauthorized(f"This join token was revoked. {NEW_ONE}", "token_revoked")
    if token.expires_at is not None and token.expires_at <= timezone.now():
        raise Unauthorized(f"This join token has expired. {NEW_ONE}", "token_expired")
    return token


def still_counts(plain: str) -> bool:
    """Whether no new one is due: it lets a machine in, or did so already, or was revoked on purpose."""
    token = JoinToken.objects.filter(hashed=digest(plain)).first()
    if token is None:
        return False
    return token.is_used_up or token.revoked_at is not None or token.is_valid(timezone.now())


def use(token: JoinToken) -> None:
    """Of two machines with a token for one, the second gets Unauthorized."""
    rows = JoinToken.objects.filter(pk=token.pk)
    if token.single_use:
        rows = rows.filter(last_used_at=None)
    if not rows.update(last_used_at=timezone.now()):
        raise Unauthorized(f"This join token was for one machine and has been used. {NEW_ONE}", "token_used")


def _check_may(actor: Actor) -> None:
    if not actor.can(Role.ADMIN):
        raise Forbidden(refusal(Role.ADMIN))


def _checked_host_name(host_name: str) -> str:
    host_name = host_name.strip()
    try:
        if host_name:
            name_validator(host_name)
    except ValidationError as error:
        raise Invalid(error.messages[0], "host_name") from error
    return host_name


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _facts(token: JoinToken) -> dict[str, str | bool | None]:
    return {
        "prefix": token.prefix,
        "host_name": token.host_name,
        "single_use": token.single_use,
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
    }
