"""Who calls the API: a token, or the person logged in by a session. Everything but the error for it needs one."""

from dataclasses import dataclass

from django.http import HttpRequest
from ninja.utils import check_csrf

from console.accounts import tokens
from console.accounts.access import SAFE_METHODS, refusal
from console.accounts.audit import Actor, person
from console.accounts.models import InferenceKey, JoinToken, Role, User
from console.api.errors import ApiError

HOW_TO_LOG_IN = "Send `Authorization: Bearer <API token>`, or log in."


@dataclass(frozen=True, slots=True)
class Caller:
    actor: Actor
    user: User
    id: str
    """`token 5` or `person 3`: whose idempotency keys these are."""


class Needs:
    """An operation's `auth`: identifies the caller and asks for a role, before anything of the request is read."""

    csrf = True
    """Read by the page that describes the API: it then tries operations with the CSRF token of its session."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def __call__(self, request: HttpRequest) -> Caller:
        """Raises ApiError 401 and 403."""
        caller = caller_of(request)
        if not caller.actor.can(self.role):
            raise ApiError(403, refusal(self.role))
        return caller


VIEWER, OPERATOR, ADMIN = Needs(Role.VIEWER), Needs(Role.OPERATOR), Needs(Role.ADMIN)


def caller_of(request: HttpRequest) -> Caller:
    """Looked up once per request. Raises ApiError 401, and 403 for a change by a session without a CSRF token."""
    known: Caller | None = getattr(request, "_api_caller", None)
    if known is None:
        known = _by_token(request) if "Authorization" in request.headers else _by_session(request)
        request._api_caller = known  # type: ignore[attr-defined]
    return known


def actor_of(request: HttpRequest) -> Actor:
    return caller_of(request).actor


def _by_token(request: HttpRequest) -> Caller:
    """A bad token is refused even beside a good session: whoever sends one means it."""
    scheme, _, plain = request.headers["Authorization"].partition(" ")
    if scheme.lower() != "bearer":
        raise ApiError(401, HOW_TO_LOG_IN)
    token = tokens.find(plain.strip())
    if token is None:
        raise ApiError(401, _why_no_token(plain.strip()))
    return Caller(tokens.actor(token), token.user, f"token {token.pk}")


def _why_no_token(plain: str) -> str:
    """A secret of another kind is told by how it begins."""
    if plain.startswith(f"{InferenceKey.KIND}-"):
        return (
            "This is an inference key, which only the router takes. The API needs an API token: ask an admin for one."
        )
    if plain.startswith(f"{JoinToken.KIND}-"):
        return "This is a join token, with which machines join. The API needs an API token: ask an admin for one."
    return "This token is unknown, has expired or was revoked. Ask an admin for a new one."


def _by_session(request: HttpRequest) -> Caller:
    user = request.user
    if not isinstance(user, User):
        raise ApiError(401, f"You are not logged in. {HOW_TO_LOG_IN}")
    if request.method not in SAFE_METHODS and check_csrf(request) is not None:
        raise ApiError(403, "Changes by a browser session need its CSRF token in the header X-CSRFToken.", code="csrf")
    return Caller(person(user), user, f"person {user.pk}")
