"""Requests that routers have finished: marks, counts, gaps and outcomes. Never the text."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from console.api import choices, find
from console.api.identity import VIEWER
from console.api.shapes import Moment, Page, Paging, Text, given, page
from console.fleet.errors import NotFound
from console.traffic import queries
from console.traffic.models import RequestRecord

router = Router(tags=["requests"])


class RequestOut(Schema):
    """Times in ms from `received_at`; null where the request never came so far."""

    request_id: str
    deployment: str | None = Field(description="Null when none serves the model, or it is deleted.")
    model: str
    path: str
    streamed: bool
    received_at: datetime
    route: str
    reason: str = Field(description="Why it went there.")
    prefill_server: str
    decode_server: str = Field(description="The one that answered, also of a request that was not split.")
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    ttft_ms: float | None = Field(description="Time to first token; null for a request that was not streamed.")
    max_gap_ms: float | None
    e2e_ms: float | None
    status: int
    outcome: str
    error: str
    attempts: int
    orphaned_handoff: bool = Field(description="The prefill server kept a cache that nobody fetched.")


class Marks(Schema):
    """Milliseconds from `received_at`, in the order in which they happen."""

    chosen_ms: float | None
    prefill_sent_ms: float | None
    prefill_answered_ms: float | None
    decode_sent_ms: float | None
    decode_opened_ms: float | None
    first_token_ms: float | None
    last_token_ms: float | None
    finished_ms: float | None


class LongPromptOut(Schema):
    """A long prompt that was computed on its server while it streamed."""

    request_id: str
    prompt_tokens: int | None
    start: datetime
    end: datetime
    worst_gap_ms: float | None = Field(description="The largest gap of this request that overlaps it.")


class RequestDetail(RequestOut):
    marks: Marks
    gaps_ms: list[float] = Field(description="Between consecutive chunks, in order.")
    shared_server_with: list[str] = Field(description="Ids of requests that were on its server at the same time.")
    long_prompts: list[LongPromptOut]


class RequestFilters(Paging):
    deployment: str | None = None
    server: Text | None = Field(None, description="Name of a server, on either side; it may be gone by now.")
    outcome: choices.Outcome | None = None
    route: choices.Route | None = None
    min_ttft_ms: float | None = Field(None, ge=0, le=1e9, allow_inf_nan=False)
    text: Text | None = Field(None, max_length=120, description="Part of a request id.")
    since: Moment | None = Field(None, description="Received at or after it.")
    until: Moment | None = Field(None, description="Received before it.")


@router.get("", response=Page[RequestOut], auth=VIEWER)
def list_requests(request: HttpRequest, filters: Query[RequestFilters]) -> dict[str, Any]:
    """Newest first."""
    if filters.deployment is not None:
        find.given_deployment(filters.deployment)
    return page(queries.find(queries.Filters(**given(filters))), filters, request_out)


@router.get("/{path:request_id}", response=RequestDetail, auth=VIEWER)
def get_request(request: HttpRequest, request_id: str) -> RequestDetail:
    """With its marks, its gaps, and who shared its server then. Clients may put a slash into their ids."""
    found = None if "\0" in request_id else queries.detail(request_id)
    if found is None:
        raise NotFound("There is no such request, or it is older than what is kept.")
    return RequestDetail(
        **request_out(found.record).dict(),
        marks=Marks.from_orm(found.record),
        gaps_ms=found.record.gaps_ms,
        shared_server_with=[other.request_id for other in found.shared],
        long_prompts=[long_prompt_out(prompt) for prompt in found.long_prompts],
    )


def request_out(record: RequestRecord) -> RequestOut:
    return RequestOut(
        request_id=record.request_id,
        deployment=record.deployment.name if record.deployment else None,
        model=record.model,
        path=record.path,
        streamed=record.streamed,
        received_at=record.received_at,
        route=record.route,
        reason=record.reason,
        prefill_server=record.prefill_server,
        decode_server=record.decode_server,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        ttft_ms=record.first_token_ms,
        max_gap_ms=record.max_gap_ms,
        e2e_ms=record.finished_ms,
        status=record.status,
        outcome=record.outcome,
        error=record.error,
        attempts=record.attempts,
        orphaned_handoff=record.orphaned_handoff,
    )


def long_prompt_out(prompt: queries.LongPrompt) -> LongPromptOut:
    return LongPromptOut(
        request_id=prompt.record.request_id,
        prompt_tokens=prompt.record.prompt_tokens,
        start=prompt.start,
        end=prompt.end,
        worst_gap_ms=prompt.worst_gap_ms,
    )
