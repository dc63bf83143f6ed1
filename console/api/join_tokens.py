"""Join tokens: what a machine shows once to join as a host."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.responses import Status
from pydantic import Field

from console.accounts import join_tokens
from console.accounts.models import JoinToken
from console.accounts.secrets import MAX_DAYS, MAX_NAME
from console.api.changes import change, is_rehearsal
from console.api.identity import ADMIN, actor_of
from console.api.shapes import ChangeIn, Page, Paging, Text, Whole, page

router = Router(tags=["join tokens"])


class JoinTokenOut(Schema):
    id: int
    name: str
    prefix: str = Field(description="How its plain text begins.")
    host_name: str = Field(description="The only name that a host may join under; empty: any.")
    single_use: bool
    valid: bool
    made_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    hosts: list[str] = Field(description="That joined with it.")


class JoinTokenMade(JoinTokenOut):
    token: str | None = Field(description="The plain text. Shown in this one answer; None in a dry run and repeated.")


class JoinTokenIn(ChangeIn):
    name: Text = Field(min_length=1, max_length=MAX_NAME, description="What it is for.")
    host_name: Text = Field("", max_length=63, description="The only name that a host may join under; empty: any.")
    single_use: bool = Field(True, description="Good for one machine.")
    expires_in_days: Whole | None = Field(1, ge=1, le=MAX_DAYS, description="null: without end.")


@router.get("", response=Page[JoinTokenOut], auth=ADMIN)
def list_join_tokens(request: HttpRequest, paging: Query[Paging]) -> dict[str, Any]:
    return page(join_tokens.newest_first(), paging, join_token_out)


@router.post("", response={201: JoinTokenMade}, auth=ADMIN)
@change(shown_once="token")
def make_join_token(request: HttpRequest, body: JoinTokenIn) -> Status[Any]:
    """Shown once. A machine joins with it: `manage.py agent --name … --console … --token …`."""
    actor = actor_of(request)
    token, plain = join_tokens.issue(actor, body.name, body.host_name, body.single_use, body.expires_in_days)
    shown = None if is_rehearsal(request) else plain
    return Status(201, JoinTokenMade(**join_token_out(token).dict(), token=shown))


@router.delete("/{int:token_id}", response=JoinTokenOut, auth=ADMIN)
@change()
def revoke_join_token(request: HttpRequest, token_id: int) -> JoinTokenOut:
    """No machine joins with it any more. Hosts that have joined stay; `POST /hosts/{name}/revoke` cuts one off."""
    return join_token_out(join_tokens.revoke(token_id, actor_of(request)))


def join_token_out(token: JoinToken) -> JoinTokenOut:
    return JoinTokenOut(
        id=token.pk,
        name=token.name,
        prefix=token.prefix,
        host_name=token.host_name,
        single_use=token.single_use,
        valid=token.is_valid(),
        made_by=token.made_by,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
        hosts=sorted(login.host.name for login in token.logins.all()),
    )
