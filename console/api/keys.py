"""Inference keys of a deployment."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from ninja.responses import Status
from pydantic import Field

from console.accounts import keys
from console.accounts.models import InferenceKey
from console.accounts.secrets import MAX_DAYS, MAX_NAME
from console.api import find
from console.api.changes import change, is_rehearsal
from console.api.identity import OPERATOR, VIEWER, actor_of
from console.api.shapes import ChangeIn, Page, Paging, Text, Whole, page

router = Router(tags=["keys"])


class KeyOut(Schema):
    id: int
    name: str
    prefix: str = Field(description="How its plain text begins.")
    valid: bool
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class KeyMade(KeyOut):
    key: str | None = Field(description="The plain text. Shown in this one answer; None in a dry run and repeated.")


class KeyIn(ChangeIn):
    name: Text = Field(min_length=1, max_length=MAX_NAME, description="Who or what uses it.")
    expires_in_days: Whole | None = Field(None, ge=1, le=MAX_DAYS)


@router.get("/{name}/keys", response=Page[KeyOut], auth=VIEWER)
def list_keys(request: HttpRequest, name: str, paging: Query[Paging]) -> dict[str, Any]:
    rows = InferenceKey.objects.filter(deployment=find.deployment(name)).order_by("-id")
    return page(rows, paging, key_out)


@router.post("/{name}/keys", response={201: KeyMade}, auth=OPERATOR)
@change(shown_once="key")
def make_key(request: HttpRequest, name: str, body: KeyIn) -> Status[Any]:
    """A key for clients of this deployment, shown once. Routers take it at once."""
    deployment = find.deployment(name)
    key, plain = keys.issue(actor_of(request), deployment.pk, body.name, body.expires_in_days)
    shown = None if is_rehearsal(request) else plain
    return Status(201, KeyMade(**key_out(key).dict(), key=shown))


@router.delete("/{name}/keys/{int:key_id}", response=KeyOut, auth=OPERATOR)
@change()
def revoke_key(request: HttpRequest, name: str, key_id: int) -> KeyOut:
    """Takes a key back for good. Routers refuse it at once."""
    return key_out(keys.revoke(key_id, find.deployment(name).pk, actor_of(request)))


def key_out(key: InferenceKey) -> KeyOut:
    return KeyOut(
        id=key.pk,
        name=key.name,
        prefix=key.prefix,
        valid=key.is_valid(),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
    )
