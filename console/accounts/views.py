"""Logging in, tokens and inference keys, and the audit trail."""

from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.views import LoginView
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console import answers
from console.accounts import keys
from console.accounts import tokens as api_tokens
from console.accounts.access import actor_of, needs
from console.accounts.forms import KeyForm, LogInForm, TokenForm
from console.accounts.models import AuditEntry, InferenceKey, Role, User
from console.fleet.errors import FleetError
from console.fleet.models import Deployment

AUDIT_PER_PAGE = 50
AUDIT_FIELDS = (("actor", "Who"), ("action", "What"), ("target", "On"))


class LogIn(LoginView):
    template_name = "accounts/login.html"
    authentication_form = LogInForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(nobody_yet=not User.objects.exists(), **kwargs)


@require_safe
@needs(Role.VIEWER)
def tokens(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/tokens.html", _context(request))


@require_POST
@needs(Role.ADMIN)
def token_new(request: HttpRequest) -> HttpResponse:
    """Makes a token for the person who asks. The answer is the only place that ever shows it."""
    form = TokenForm(request.POST)
    context = {"token_form": form}
    if form.is_valid() and _first_time(request, form):
        try:
            chosen = form.cleaned_data
            scope, days = Role(chosen["scope"]), chosen["expires_in_days"]
            token, plain = api_tokens.issue(actor_of(request), _user(request), chosen["name"], scope, days)
        except FleetError as error:
            answers.forget_first_time(request)
            form.refuse(error)
        else:
            made = {"made": token.name, "plain": plain, "made_kind": "token"}
            return _never_stored(render(request, "accounts/tokens.html", _context(request) | made))
    return answers.shown_again(request, "accounts/tokens.html", _context(request) | context)


@require_POST
@needs(Role.OPERATOR)
def key_new(request: HttpRequest) -> HttpResponse:
    form = KeyForm(request.POST)
    context = {"key_form": form}
    if form.is_valid() and _first_time(request, form):
        try:
            chosen = form.cleaned_data
            key, plain = keys.issue(
                actor_of(request), chosen["deployment"].pk, chosen["name"], chosen["expires_in_days"]
            )
        except FleetError as error:
            answers.forget_first_time(request)
            form.refuse(error)
        else:
            made = {"made": key.name, "plain": plain, "made_kind": "inference key"}
            return _never_stored(render(request, "accounts/tokens.html", _context(request) | made))
    return answers.shown_again(request, "accounts/tokens.html", _context(request) | context)


@require_POST
@needs(Role.VIEWER)
def token_revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """People take back their own tokens; an admin anybody's."""
    back = reverse("tokens")
    try:
        token = api_tokens.revoke(token_id, actor_of(request), _user(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"Token {token.name} works no longer.", back)


@require_POST
@needs(Role.OPERATOR)
def key_revoke(request: HttpRequest, key_id: int) -> HttpResponse:
    back = reverse("tokens")
    key = InferenceKey.objects.filter(pk=key_id).first()
    try:
        revoked = keys.revoke(key_id, key.deployment_id if key else 0, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"Key {revoked.name} works no longer.", back)


@require_safe
@needs(Role.VIEWER)
def audit_list(request: HttpRequest) -> HttpResponse:
    entries = AuditEntry.objects.all()
    wanted = {name: request.GET.get(name, "").strip() for name, _ in AUDIT_FIELDS}
    for name, text in wanted.items():
        if text:
            entries = entries.filter(**{f"{name}__icontains": text})
    page = Paginator(entries, AUDIT_PER_PAGE).get_page(request.GET.get("page"))
    kept = urlencode({name: text for name, text in wanted.items() if text})
    context = {
        "section": "audit",
        "page": page,
        "wanted": wanted,
        "fields": AUDIT_FIELDS,
        "query": f"{kept}&" if kept else "",
        "any": AuditEntry.objects.exists(),
    }
    return render(request, "accounts/audit.html", context)


def _context(request: HttpRequest) -> dict[str, Any]:
    user = _user(request)
    return {
        "section": "tokens",
        "tokens": api_tokens.visible_to(user, actor_of(request)),
        "keys": InferenceKey.objects.select_related("deployment").order_by("-id"),
        "deployments_exist": Deployment.objects.exists(),
        "token_form": TokenForm(),
        "key_form": KeyForm(),
    }


def _first_time(request: HttpRequest, form: TokenForm | KeyForm) -> bool:
    if answers.first_time(request):
        return True
    form.add_error(None, "This form was sent already, and what it made was shown then. Look at the list below.")
    return False


def _never_stored(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "no-store"
    return response


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # `needs` let nobody else in
    return request.user
