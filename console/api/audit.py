"""The audit trail."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field, JsonValue

from console.accounts.models import AuditEntry
from console.api.identity import VIEWER
from console.api.shapes import Page, Paging, Text, given, page

router = Router(tags=["audit"])


class AuditOut(Schema):
    id: int
    at: datetime
    actor: str
    action: str
    target: str
    before: dict[str, JsonValue]
    after: dict[str, JsonValue]
    reason: str


class AuditFilters(Paging):
    actor: Text | None = None
    action: Text | None = Field(None, description="As it stands in the trail: `server.start`, `key.make`, …")
    target: Text | None = Field(None, description="As it stands in the trail: `server chat-1`, `deployment chat`, …")


@router.get("", response=Page[AuditOut], auth=VIEWER)
def list_audit(request: HttpRequest, filters: Query[AuditFilters]) -> dict[str, Any]:
    """Who changed what, newest first."""
    return page(AuditEntry.objects.filter(**given(filters)), filters, AuditOut.from_orm)
