"""How page views answer a change: a message and the next page, or for htmx a short message in the corner.

The same view serves a browser without script (a form that redirects) and one with it (a region that is swapped).
"""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django_htmx.http import trigger_client_event

from console import shared
from console.fleet.errors import FleetError

ONCE_KEPT_S = 3600


def is_region(request: HttpRequest) -> bool:
    """Asked for by htmx: only a part of the page is wanted."""
    return request.headers.get("HX-Request") == "true"


def done(request: HttpRequest, text: str, to: str) -> HttpResponse:
    """The change happened. `to`: where a browser without script goes next."""
    if not is_region(request):
        messages.success(request, text)
        return redirect(to)
    response = HttpResponse(status=204)
    trigger_client_event(response, "close-ask", {})
    return trigger_client_event(response, "toast", {"text": text, "kind": "good"})


def refused(request: HttpRequest, error: FleetError, to: str) -> HttpResponse:
    """Nothing changed; the message says why and what to do."""
    if not is_region(request):
        messages.error(request, error.message)
        return redirect(to)
    response = HttpResponse(status=error.status)
    response["HX-Reswap"] = "none"
    return trigger_client_event(response, "toast", {"text": error.message, "kind": "bad"})


def shown_again(request: HttpRequest, template: str, context: dict[str, object], status: int = 400) -> HttpResponse:
    """The same form with its messages. 400 by default, so that nothing takes it for success."""
    return render(request, template, context, status=status)


def first_time(request: HttpRequest) -> bool:
    """False when this very form (its hidden `once`) was already sent: a double click, or the reload of an answer.

    A form without `once` always counts as new.
    """
    once = request.POST.get("once", "")
    return not once or shared.is_first(_once_key(request, once), ONCE_KEPT_S)


def forget_first_time(request: HttpRequest) -> None:
    """The form was refused and may be sent again."""
    shared.forget(_once_key(request, request.POST.get("once", "")))


def _once_key(request: HttpRequest, once: str) -> str:
    return f"once:{request.user.pk}:{once[:64]}"
