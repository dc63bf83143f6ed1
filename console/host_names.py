"""What a request gets that names a host which is not ours: 400 and what to do, and a line in the log."""

import logging
from collections.abc import Callable

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port
from django.template.loader import render_to_string
from django.utils.log import log_response

from console.api.errors import answer

MOST_CHARACTERS = 100
"""Of a name that is repeated in the answer."""

log = logging.getLogger(__name__)


class RefusedHosts:
    """Middleware, the first. Django itself writes a traceback for each such request, and scanners send many."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        try:
            request.get_host()
        except DisallowedHost as error:
            response = refuse(request)
            log_response(
                "%s %s: %s", request.method, request.path, error, response=response, request=request, logger=log
            )
            return response
        return self._get_response(request)


def refuse(request: HttpRequest) -> HttpResponse:
    asked = str(request.META.get("HTTP_HOST", ""))
    name = (split_domain_port(asked)[0] or asked)[:MOST_CHARACTERS]
    words = f"The console does not take the name {name}: start it with {name} in ALLOWED_HOSTS, or use its usual name."
    if request.path.startswith("/api/"):
        return answer(400, words, code="unknown_host")
    return HttpResponse(render_to_string("400_host.html", {"words": words}), status=400)
