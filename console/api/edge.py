"""What every operation goes through: who calls, no parameter that does not exist, and every failure in one shape."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from ninja.operation import Operation

from console.accounts.access import ask_for_login
from console.api.errors import ApiError, answer
from console.api.identity import caller_of

Run = Callable[..., HttpResponseBase]
View = Callable[..., HttpResponseBase]

EXTRA_PARAMETERS = "_api_extra_parameters"
"""Attribute of a view function: query parameters that are read before the view, and not by it."""


def guarded(run: Run) -> Run:
    """Around `Operation.run`."""
    operation: Operation = inspect.unwrap(run).__self__
    known = _query_parameters(operation)

    @wraps(run)
    def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        try:
            caller_of(request)
            _refuse_unknown_parameters(request, known)
            return run(request, **kwargs)
        except Exception as error:  # the edge of the API: whatever it is, the caller gets an answer in our shape
            return operation.api.on_exception(request, error)

    return checked


def speaking_json(view: View) -> View:
    """Around a whole path: the framework answers a method that the path does not have with plain text.

    No answer is stored by anybody on the way: some hold a token, and all are about this moment.
    """

    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        response.headers["Cache-Control"] = "no-store"
        if response.status_code != 405:
            return response
        allowed = ", ".join(sorted(response.headers["Allow"].replace(" ", "").split(",")))
        refused = answer(405, f"This path takes {allowed}.")
        refused["Allow"] = allowed
        return refused

    return answered


def documented(view: View) -> View:
    """Around the API's description: a browser without login is sent to the form, a program gets 401."""

    @csrf_exempt
    def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
        try:
            caller_of(request)
        except ApiError as error:
            if "text/html" in request.headers.get("Accept", ""):
                return ask_for_login(request)
            return answer(error.status, error.message)
        return view(request, **kwargs)

    return checked


@csrf_exempt
def unknown_path(request: HttpRequest) -> HttpResponse:
    return answer(404, f"There is nothing at {request.path}. The API is described at /api/docs.")


def _query_parameters(operation: Operation) -> frozenset[str]:
    declared = [
        name
        for model in operation.models
        if model.__ninja_param_source__ == "query"
        for name in getattr(model, "__ninja_flatten_map__", {})
    ]
    return frozenset([*declared, *getattr(operation.view_func, EXTRA_PARAMETERS, ())])


def _refuse_unknown_parameters(request: HttpRequest, known: frozenset[str]) -> None:
    """A misspelt filter would silently filter nothing."""
    for name in request.GET:
        if name not in known:
            may_be = f"It takes {', '.join(sorted(known))}." if known else "It takes none."
            raise ApiError(400, f"There is no parameter {name!r} here. {may_be}", code="unknown_parameter", field=name)
