"""Changes through the API: all or nothing, rehearsed with `dry_run`, done once per `Idempotency-Key`."""

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from typing import Any, TypeVar

from django.core.exceptions import SuspiciousOperation
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, UnreadablePostError
from django.utils import timezone
from ninja.decorators import decorate_view
from ninja.operation import Operation
from ninja.utils import contribute_operation_callback

from console.api.edge import EXTRA_PARAMETERS, Run
from console.api.errors import ApiError
from console.api.identity import caller_of
from console.api.models import KeptAnswer

KEPT_FOR = timedelta(hours=24)
MAX_KEY = 200
TRUE, FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})
UNCLEAR = "dry_run is true or false."
V = TypeVar("V", bound=Callable[..., Any])

REHEARSES = (
    "Check everything and answer what would happen; change nothing. Given here or in the body, where there is one: "
    'either does. Such an answer holds `"dry_run": true` and has the header `Dry-Run: true`.'
)
REHEARSED = "Dry-Run"
"""Header of an answer to a rehearsal."""
PARAMETERS: list[dict[str, Any]] = [
    {
        "in": "query",
        "name": "dry_run",
        "required": False,
        "schema": {"type": "boolean", "default": False},
        "description": REHEARSES,
    },
    {
        "in": "header",
        "name": "Idempotency-Key",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]+$"},
        "description": "The same key with the same request within 24 hours gets the same answer and changes nothing "
        "again; with another request it is refused with 409.",
    },
]


PREPARED = "_api_prepared"
First = Callable[[HttpRequest], Any]


def change(*, shown_once: str = "", first: First | None = None) -> Callable[[V], V]:
    """Marks an operation as a change. `shown_once` names a field of its answer that is not kept for a repetition.

    `first` runs before the transaction, for what takes long, and not for a repetition; what it returns is `prepared`.
    It has to ask for the caller's role itself, and leaves a body that does not fit to the operation.
    """

    def decorate(view: V) -> V:
        setattr(view, EXTRA_PARAMETERS, ("dry_run",))
        contribute_operation_callback(view, _declare)
        return decorate_view(partial(_changing, shown_once, first))(view)

    return decorate


def is_rehearsal(request: HttpRequest) -> bool:
    """By query or body. Raises ApiError for a value that is neither true nor false."""
    given = request.GET.get("dry_run", "false").lower()
    if given not in TRUE | FALSE:
        raise ApiError(400, UNCLEAR, field="dry_run")
    return given in TRUE or _body_says_rehearsal(request)


def _body_says_rehearsal(request: HttpRequest) -> bool:
    """A body that cannot be read is refused later, by whoever reads it."""
    try:
        body = json.loads(request.body or b"{}")
    except (ValueError, RecursionError, SuspiciousOperation, UnreadablePostError):
        return False
    said = body.get("dry_run", False) if isinstance(body, dict) else False
    if not isinstance(said, bool):
        raise ApiError(400, UNCLEAR, field="dry_run")
    return said


def _declare(operation: Operation) -> None:
    operation.openapi_extra = {**(operation.openapi_extra or {}), "parameters": [*PARAMETERS]}


def prepared(request: HttpRequest) -> Any:
    """What `first` returned; None when there was nothing to do."""
    return getattr(request, PREPARED, None)


def _changing(shown_once: str, first: First | None, run: Run) -> Run:
    @wraps(run)
    def changing(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        perform = partial(run, request, **kwargs)
        key = _key(request)
        if first is not None and not _was_done(request, key):
            setattr(request, PREPARED, first(request))
        if is_rehearsal(request):
            return _rehearse(perform)
        if key is None:
            return _all_or_nothing(perform)
        return _once(request, key, perform, shown_once)

    return changing


def _was_done(request: HttpRequest, key: str | None) -> bool:
    if key is None:
        return False
    since = timezone.now() - KEPT_FOR
    return KeptAnswer.objects.filter(caller=caller_of(request).id, key=key, created_at__gte=since).exists()


def _rehearse(perform: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    """Rolled back, and with it what was to happen after commit: messages to hosts, nudges to routers."""
    with transaction.atomic():
        response = perform()
        transaction.set_rollback(True)
    if response.status_code < 400:
        _mark(response)
    response.headers[REHEARSED] = "true"
    return response


def _mark(response: HttpResponseBase) -> None:
    """In its body too, which is what programs and people keep: it looks like that of the change itself."""
    assert isinstance(response, HttpResponse)
    body = json.loads(response.content)
    if isinstance(body, dict):
        response.content = json.dumps({"dry_run": True, **body})


def _all_or_nothing(perform: Callable[[], HttpResponseBase]) -> HttpResponseBase:
    with transaction.atomic():
        response = perform()
        if response.status_code >= 400:
            transaction.set_rollback(True)
    return response


def _once(request: HttpRequest, key: str, perform: Callable[[], HttpResponseBase], shown_once: str) -> HttpResponseBase:
    """Claim, change and kept answer commit together: of two at once the second waits for the first and repeats it.

    A refusal is not kept: it changed nothing, and may end when the state does.
    """
    KeptAnswer.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).delete()
    mine = {"caller": caller_of(request).id, "key": key}
    digest = _digest(request)
    with transaction.atomic():
        if not _claim(**mine, request_digest=digest):
            return _repeat(KeptAnswer.objects.get(**mine), digest)
        response = perform()
        if response.status_code >= 400:
            transaction.set_rollback(True)
        else:
            body = _without(shown_once, response)
            KeptAnswer.objects.filter(**mine).update(status=response.status_code, body=body)
    return response


def _claim(**fields: str) -> bool:
    """False when another request has this key, finished or (where the database lets both begin) after waiting."""
    try:
        with transaction.atomic():
            KeptAnswer.objects.create(**fields)
    except IntegrityError:
        return False
    return True


def _repeat(kept: KeptAnswer, digest: str) -> HttpResponse:
    if kept.request_digest != digest:
        message = "This Idempotency-Key was used for another request. Use a new key for each change."
        raise ApiError(409, message, code="key_reused")
    headers = {"Idempotency-Replayed": "true"}
    return HttpResponse(kept.body, status=kept.status, content_type="application/json", headers=headers)


def _key(request: HttpRequest) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY or not all("!" <= character <= "~" for character in key):
        message = f"An Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters without spaces."
        raise ApiError(400, message, field="Idempotency-Key")
    return key


def _digest(request: HttpRequest) -> str:
    parts = (str(request.method).encode(), request.get_full_path().encode(), request.body)
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def _without(shown_once: str, response: HttpResponseBase) -> str:
    """Keys and tokens stand nowhere in clear, here neither."""
    assert isinstance(response, HttpResponse)
    text = response.content.decode()
    if not shown_once:
        return text
    return json.dumps({**json.loads(text), shown_once: None})
