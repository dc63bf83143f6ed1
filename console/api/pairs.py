"""Pairs of a prefill and a decode server, and what the canary through them showed."""

from datetime import datetime
from typing import Any

from django.db.models import F
from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from console.api import find
from console.api.identity import OPERATOR, VIEWER, actor_of
from console.api.shapes import Input, Page, Paging, ServerRef, page
from console.fleet.models import Pair
from console.fleet.states import PairState
from console.launch import parity

router = Router(tags=["pairs"])


class PairOut(Schema):
    id: int
    deployment: str
    prefill: ServerRef
    decode: ServerRef
    state: PairState = Field(description="Of the present starts of both; after a restart it is unverified again.")
    in_use: bool = Field(description="Requests are split through it now: it is verified, and both servers are ready.")
    reason: str
    checked_at: datetime | None
    attempts: int
    transfer_ms: float | None = Field(description="Mean transfer time of the canary.")
    transfer_bytes: int | None
    canary_tokens: int | None


class ParityOut(Schema):
    same: bool = Field(description="False is an alarm: the KV that travels is not the KV that was computed.")
    prompt: str
    split: str
    alone: str
    alone_on: str = Field(description="The server that answered by itself: a plain one, else the prefill server.")


class Nothing(Input):
    """It takes no settings, and changes nothing that could be rehearsed."""


NOTHING = Nothing()


class PairFilters(Paging):
    deployment: str | None = None
    state: PairState | None = None


@router.get("", response=Page[PairOut], auth=VIEWER)
def list_pairs(request: HttpRequest, filters: Query[PairFilters]) -> dict[str, Any]:
    """Only verified pairs get traffic."""
    rows = Pair.objects.select_related("prefill__deployment", "decode").order_by("id")
    if filters.deployment is not None:
        rows = rows.filter(prefill__deployment=find.given_deployment(filters.deployment))
    if filters.state == PairState.UNVERIFIED:
        rows = rows.exclude(pk__in=_current().exclude(state=PairState.UNVERIFIED))
    elif filters.state is not None:
        rows = rows.filter(pk__in=_current().filter(state=filters.state))
    return page(rows, filters, pair_out)


@router.post("/{int:pair_id}/parity", response=ParityOut, auth=OPERATOR)
def check_parity(request: HttpRequest, pair_id: int, body: Nothing = NOTHING) -> parity.Parity:
    """Sends one prompt at temperature 0 through the pair and through one server alone, and compares the answers."""
    return parity.check(pair_id, actor_of(request))


def pair_out(pair: Pair) -> PairOut:
    return PairOut(
        id=pair.pk,
        deployment=pair.prefill.deployment.name,
        prefill=ServerRef.from_orm(pair.prefill),
        decode=ServerRef.from_orm(pair.decode),
        state=PairState(pair.state) if pair.is_current else PairState.UNVERIFIED,
        in_use=pair.is_in_use,
        reason=pair.reason if pair.is_current else "One of them was started again since.",
        checked_at=pair.checked_at,
        attempts=pair.attempts,
        transfer_ms=pair.transfer_ms,
        transfer_bytes=pair.transfer_bytes,
        canary_tokens=pair.canary_tokens,
    )


def _current() -> Any:
    """`Pair.is_current` for the database."""
    return Pair.objects.filter(
        prefill_generation=F("prefill__generation"), decode_generation=F("decode__generation")
    ).order_by()
