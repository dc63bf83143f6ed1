"""One shape for every error of the API, and how each kind of failure is turned into it."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from kombu.exceptions import OperationalError as BrokerError
from ninja import NinjaAPI, Schema
from ninja.errors import HttpError, ValidationError
from redis.exceptions import RedisError

from console.fleet.errors import FleetError

log = logging.getLogger(__name__)

CODES = {
    400: "invalid",
    401: "not_logged_in",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    429: "too_many",
    500: "internal",
    503: "unavailable",
}
"""Status to the code that it has unless something more exact is known."""

MEANINGS = {
    400: "The input cannot be meant; nothing was changed",
    401: "No login and no valid token",
    403: "The role or the scope does not allow it, or a session sent no CSRF token",
    404: "There is no such thing",
    405: "The path has no such method",
    409: "The present state does not allow it; look again, then decide",
    500: "A fault of the console; it is in its log",
    503: "A host, the broker or the database did not answer; trying again can help",
}


class ErrorDetail(Schema):
    field: str
    message: str


class ErrorBody(Schema):
    code: str
    message: str
    field: str | None = None
    details: list[ErrorDetail] | None = None


class ErrorOut(Schema):
    error: ErrorBody


class Detail(TypedDict):
    field: str
    message: str


class ApiError(Exception):
    """A refusal that arises in the API itself, not in the domain."""

    def __init__(self, status: int, message: str, *, code: str = "", field: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field
        self.code = code or CODES[status]


def answer(
    status: int, message: str, *, code: str = "", field: str | None = None, details: Iterable[Detail] = ()
) -> HttpResponse:
    error: dict[str, Any] = {"code": code or CODES[status], "message": message}
    if field:
        error["field"] = field
    if listed := list(details):
        error["details"] = listed
    response = JsonResponse({"error": error}, status=status)
    if status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="Switchyard"'
    return response


def handle(api: NinjaAPI) -> None:
    """Registers every handler below with `api`."""
    handlers: dict[type[Exception], Callable[[HttpRequest, Any], HttpResponse]] = {
        ApiError: _refused_here,
        FleetError: _refused_by_the_domain,
        ValidationError: _does_not_fit_the_schema,
        DjangoValidationError: _does_not_fit_the_model,
        HttpError: _refused_by_the_framework,
        Http404: lambda request, error: answer(404, "There is no such thing."),
        PermissionDenied: lambda request, error: answer(403, str(error) or "This is not allowed."),
        SuspiciousOperation: lambda request, error: answer(400, "The request cannot be read: it is too big or broken."),
        UnreadablePostError: lambda request, error: answer(400, "The request ended before its body was complete."),
        OperationalError: _database_away,
        InterfaceError: _database_away,
        BrokerError: _broker_away,
        RedisError: _broker_away,
        Exception: _fault,
    }
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)


def _refused_here(request: HttpRequest, error: ApiError) -> HttpResponse:
    return answer(error.status, error.message, code=error.code, field=error.field)


def _refused_by_the_domain(request: HttpRequest, error: FleetError) -> HttpResponse:
    return answer(error.status, error.message, code=error.code, field=error.field)


def _refused_by_the_framework(request: HttpRequest, error: HttpError) -> HttpResponse:
    if error.status_code == 400:
        return answer(400, "The body is not valid JSON.", code="not_json")
    return answer(error.status_code, str(error))


def _does_not_fit_the_schema(request: HttpRequest, error: ValidationError) -> HttpResponse:
    details = [Detail(field=_field(entry["loc"]), message=_plain(entry)) for entry in error.errors]
    first = details[0]
    message = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
    return answer(400, message, field=first["field"], details=details)


def _does_not_fit_the_model(request: HttpRequest, error: DjangoValidationError) -> HttpResponse:
    by_field = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
    details = [Detail(field=field, message=text) for field, texts in by_field.items() for text in texts]
    return answer(400, details[0]["message"], field=details[0]["field"], details=details)


def _database_away(request: HttpRequest, error: Exception) -> HttpResponse:
    log.warning("database: %s", error)
    return answer(503, "The database did not answer. Nothing was changed; try again.")


def _broker_away(request: HttpRequest, error: Exception) -> HttpResponse:
    log.warning("broker: %s", error)
    return answer(503, "The broker (Redis or Valkey) did not answer. Check that it runs, and try again.")


def _fault(request: HttpRequest, error: Exception) -> HttpResponse:
    log.error("%s %s failed", request.method, request.path, exc_info=error)
    return answer(500, "The console failed to do this. Its log says more.")


def _field(location: tuple[int | str, ...]) -> str:
    """`("body", "body", "gpu_indexes", 0)` is `gpu_indexes.0`: callers know neither source nor name of the argument."""
    if location[0] == "body" and len(location) <= 2:
        return "body"
    skipped = 2 if location[0] == "body" else 1
    return ".".join(str(part) for part in location[skipped:])


def _plain(entry: dict[str, Any]) -> str:
    """The validator's words as a sentence; what our own validators say is passed on as it is."""
    if entry["type"] == "extra_forbidden":
        return "There is no such field."
    if entry["type"] == "missing":
        return "This is required." if _field(entry["loc"]) != "body" else "Send a JSON object as the body."
    if length := _length(entry):
        return length
    text = str(entry["msg"]).removeprefix("Value error, ")
    return text if text.endswith(".") else f"{text}."


def _length(entry: dict[str, Any]) -> str:
    """Of a text; empty for anything else. The validator speaks of some texts as of lists, in items."""
    limits = entry.get("ctx", {})
    if not entry["type"].startswith("string_too_") and limits.get("field_type") != "Value":
        return ""
    if entry["type"].endswith("too_long"):
        return f"At most {limits['max_length']} characters."
    if entry["type"].endswith("too_short"):
        least = limits["min_length"]
        return "It cannot be empty." if least == 1 else f"At least {least} characters."
    return ""
