"""What a browser is told while the database is away: 503, what goes on, and a page that asks again by itself."""

import logging
import sys
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.defaults import server_error as fault
from django_htmx.http import trigger_client_event

from console import answers
from console.database import Away, in_a_line

RETRY_AFTER_S = 5
NOT_DONE = "The database does not answer, so nothing was done. Check that it runs, then try again."

log = logging.getLogger(__name__)


class DatabaseOutages:
    """Middleware: answers for views that could not reach the database."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return answer(request, exception) if isinstance(exception, Away) else None


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's last resort, also for what middleware raised, such as a session that cannot be saved."""
    error = sys.exc_info()[1]
    return answer(request, error) if isinstance(error, Away) else fault(request)


def answer(request: HttpRequest, error: BaseException) -> HttpResponse:
    log.warning("%s %s: the database does not answer: %s", request.method, request.path, in_a_line(error))
    response = _for_a_region() if answers.is_region(request) else _page(request)
    response["Retry-After"] = str(RETRY_AFTER_S)
    response["Cache-Control"] = "no-store"
    return response


def _for_a_region() -> HttpResponse:
    """What is on the page stays; a region that asks for itself anew says so in its own way, others in a corner."""
    response = HttpResponse(status=503)
    response["HX-Reswap"] = "none"
    return trigger_client_event(response, "toast", {"text": NOT_DONE, "kind": "bad"})


def _page(request: HttpRequest) -> HttpResponse:
    asks_again = request.method in ("GET", "HEAD")
    context = {"asks_again_after_s": RETRY_AFTER_S if asks_again else None}
    return render(request, "503.html", context, status=503)
