"""API tokens."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.responses import Status
from pydantic import Field

from console.accounts import tokens
from console.accounts.models import ApiToken, Role
from console.accounts.secrets import MAX_DAYS, MAX_NAME
from console.api.changes import change, is_rehearsal
from console.api.choices import PersonRole
from console.api.identity import ADMIN, VIEWER, caller_of
from console.api.shapes import ChangeIn, Page, Paging, Text, Whole, page

router = Router(tags=["tokens"])


class TokenOut(Schema):
    id: int
    name: str
    owner: str
    scope: Role
    prefix: str = Field(description="How its plain text begins.")
    valid: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")


class TokenMade(TokenOut):
    token: str | None = Field(description="The plain text. Shown in this one answer; None in a dry run and repeated.")


class TokenIn(ChangeIn):
    name: Text = Field(min_length=1, max_length=MAX_NAME, description="What it is for.")
    scope: PersonRole = Field(Role.VIEWER, description="The most it may do; at most your own role.")
    expires_in_days: Whole | None = Field(None, ge=1, le=MAX_DAYS)


@router.get("", response=Page[TokenOut], auth=VIEWER)
def list_tokens(request: HttpRequest, paging: Query[Paging]) -> dict[str, Any]:
    """Your own; an admin sees everybody's."""
    caller = caller_of(request)
    return page(tokens.visible_to(caller.user, caller.actor), paging, token_out)


@router.post("", response={201: TokenMade}, auth=ADMIN)
@change(shown_once="token")
def make_token(request: HttpRequest, body: TokenIn) -> Status[Any]:
    """A token of your own, shown once."""
    caller = caller_of(request)
    token, plain = tokens.issue(caller.actor, caller.user, body.name, body.scope, body.expires_in_days)
    shown = None if is_rehearsal(request) else plain
    return Status(201, TokenMade(**token_out(token).dict(), token=shown))


@router.delete("/{int:token_id}", response=TokenOut, auth=VIEWER)
@change()
def revoke_token(request: HttpRequest, token_id: int) -> TokenOut:
    """Takes a token back for good. Your own; an admin any."""
    caller = caller_of(request)
    return token_out(tokens.revoke(token_id, caller.actor, caller.user))


def token_out(token: ApiToken) -> TokenOut:
    return TokenOut(
        id=token.pk,
        name=token.name,
        owner=token.user.username,
        scope=Role(token.scope),
        prefix=token.prefix,
        valid=token.is_valid(),
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
    )
