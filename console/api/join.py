"""`POST /api/join`: a machine joins as a host. No login: the join token in the Authorization header lets it in.

Body: {"name": …, "secret_sha256": …}. Answer: {"host", "broker", "username", "prefix", "warning"}, see `Admission`.
"""

import json
import logging
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from console import shared
from console.api.errors import ApiError, answer
from console.database import Away
from console.fleet import admission
from console.fleet.errors import FleetError, Unauthorized

MOST_REFUSED = 10
REFUSED_FOR_S = 60

logger = logging.getLogger(__name__)


@csrf_exempt
def join(request: HttpRequest) -> HttpResponse:
    response = _join(request)
    response["Cache-Control"] = "no-store"
    return response


def _join(request: HttpRequest) -> HttpResponse:
    caller = request.META.get("REMOTE_ADDR", "")
    if request.method != "POST":
        refused = answer(405, "This path takes POST.")
        refused["Allow"] = "POST"
        return refused
    if shared.counted(_key(caller)) >= MOST_REFUSED:
        response = answer(429, "Too many wrong join tokens came from this machine. Wait a minute, then try again.")
        response["Retry-After"] = str(REFUSED_FOR_S)
        return response
    try:
        return _admitted(admission.admit(_asked(request, caller)))
    except Unauthorized as error:
        shared.count(_key(caller), REFUSED_FOR_S)
        logger.warning("a machine at %s was refused: %s", caller, error.code)
        return answer(error.status, error.message, code=error.code)
    except FleetError as error:
        return answer(error.status, error.message, code=error.code, field=error.field)
    except ApiError as error:
        return answer(error.status, error.message, code=error.code, field=error.field)
    except Away as error:
        logger.warning("database: %s", error)
        return answer(503, "The console's database did not answer. Nothing was changed; try again.")


def _asked(request: HttpRequest, caller: str) -> admission.Asked:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError(
            401, "Send `Authorization: Bearer <join token>`. An admin makes one on the page that adds a host."
        )
    body = _body(request)
    console_name = urlsplit(f"//{request.get_host()}").hostname or ""
    return admission.Asked(
        token=token.strip(),
        name=_text(body, "name"),
        secret_sha256=_text(body, "secret_sha256"),
        caller=caller,
        console_name=console_name,
    )


def _body(request: HttpRequest) -> dict[str, Any]:
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError, SuspiciousOperation, UnreadablePostError) as error:
        raise ApiError(400, "The body is not valid JSON.", code="not_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "The body is an object with name and secret_sha256.")
    return body


def _text(body: dict[str, Any], field: str) -> str:
    value = body.get(field)
    if not isinstance(value, str):
        raise ApiError(400, f"{field}: This is required, as text.", field=field)
    return value


def _admitted(admitted: admission.Admission) -> HttpResponse:
    return JsonResponse(
        {
            "host": admitted.host,
            "broker": admitted.broker,
            "username": admitted.username,
            "prefix": settings.REDIS_PREFIX,
            "warning": admitted.warning,
        }
    )


def _key(caller: str) -> str:
    return f"join-refused:{caller}"
