"""Finished requests: the list with its filters, and one request in full."""

from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from console import answers
from console.accounts.access import needs
from console.accounts.models import Role
from console.fleet.models import Deployment
from console.traffic.filters import RequestFilter
from console.traffic.models import RequestRecord
from console.traffic.percentiles import DEFAULT_GAP_LIMIT_MS
from console.traffic.queries import Detail, detail, find
from console.traffic.waterfall import parts, tpot_ms, whole_ms

PER_PAGE = 50


@require_safe
@needs(Role.VIEWER)
def listing(request: HttpRequest) -> HttpResponse:
    chosen = RequestFilter(request.GET)
    page = Paginator(find(chosen.filters), PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "section": "requests",
        "filter": chosen,
        "page": page,
        "deployments": Deployment.objects.values_list("name", flat=True),
        "any": page.paginator.count > 0 or RequestRecord.objects.exists(),
    }
    return render(request, "traffic/_requests.html" if answers.is_region(request) else "traffic/requests.html", context)


@require_safe
@needs(Role.VIEWER)
def page(request: HttpRequest, request_id: str) -> HttpResponse:
    found = detail(request_id)
    if found is None:
        # Finished a moment ago, perhaps: records reach the database within seconds.
        return render(request, "traffic/request_unknown.html", {"section": "requests", "id": request_id}, status=404)
    return render(request, "traffic/request.html", {"section": "requests", **_told(found)})


def _told(found: Detail) -> dict[str, Any]:
    record = found.record
    limit_ms = record.deployment.gap_limit_ms if record.deployment else None
    long_prompts = [
        {
            "prompt": prompt,
            "began_ms": (prompt.start - record.received_at).total_seconds() * 1000,
            "took_ms": (prompt.end - prompt.start).total_seconds() * 1000,
        }
        for prompt in found.long_prompts
    ]
    return {
        "record": record,
        "parts": parts(record),
        "whole_ms": whole_ms(record),
        "tpot_ms": tpot_ms(record),
        "gap_limit_ms": limit_ms or DEFAULT_GAP_LIMIT_MS,
        "stalls": sum(gap > (limit_ms or DEFAULT_GAP_LIMIT_MS) for gap in record.gaps_ms),
        "shared": [
            {"record": other, "began_ms": (other.received_at - record.received_at).total_seconds() * 1000}
            for other in found.shared
        ],
        "long_prompts": long_prompts,
        "long_prompt_tokens": settings.LONG_PROMPT_TOKENS,
        "chart": {
            "first_ms": record.first_token_ms,
            "gaps_ms": record.gaps_ms,
            "limit_ms": limit_ms,
            "long_prompts": [[each["began_ms"], each["took_ms"]] for each in long_prompts],
        },
    }
