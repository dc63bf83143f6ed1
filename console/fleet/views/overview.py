"""The first page: what is served, and how it goes."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from console import answers
from console.accounts.access import needs
from console.accounts.models import Role
from console.fleet.pages.joining import agent_command
from console.fleet.pages.overview import hosts_with_counts, summaries


@require_safe
@needs(Role.VIEWER)
def overview(request: HttpRequest) -> HttpResponse:
    context = {
        "section": "deployments",
        "deployments": summaries(timezone.now() - timedelta(minutes=1), timezone.now()),
        "hosts": list(hosts_with_counts()),
        "agent_command": agent_command(request),
    }
    return render(request, "fleet/_overview.html" if answers.is_region(request) else "fleet/overview.html", context)
