"""Adding a host: a join token, the one command with it, and the host as it appears."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from console import answers
from console.accounts import join_tokens
from console.accounts.access import actor_of, needs
from console.accounts.models import JoinToken, Role
from console.fleet import actions
from console.fleet.errors import FleetError
from console.fleet.forms import JoinTokenForm
from console.fleet.models import Host
from console.fleet.pages import joining


@require_http_methods(["GET", "HEAD", "POST"])
@needs(Role.ADMIN)
def new(request: HttpRequest) -> HttpResponse:
    """GET with `token` shows again who joined with it; the command itself is shown once, in the answer to the form."""
    if request.method != "POST":
        token = _token(request.GET.get("token", ""))
        return render(request, "fleet/host_new.html", _context(request, JoinTokenForm(), token))
    form = JoinTokenForm(request.POST)
    if form.is_valid() and _first_time(request, form):
        try:
            token, plain = join_tokens.issue(actor_of(request), **form.cleaned_terms())
        except FleetError as error:
            answers.forget_first_time(request)
            form.refuse(error)
        else:
            made = {"command": joining.agent_command(request, plain, token.host_name)}
            answer = render(request, "fleet/host_new.html", _context(request, JoinTokenForm(), token) | made)
            answer["Cache-Control"] = "no-store"
            return answer
    return answers.shown_again(request, "fleet/host_new.html", _context(request, form, None))


@require_safe
@needs(Role.ADMIN)
def joined(request: HttpRequest, token_id: int) -> HttpResponse:
    token = get_object_or_404(JoinToken, pk=token_id)
    if not answers.is_region(request):
        return redirect(f"{reverse('host_new')}?token={token.pk}")
    return render(request, "fleet/_joined.html", {"token": token, "joined": _joined_with(token)})


@require_safe
@needs(Role.ADMIN)
def token_list(request: HttpRequest) -> HttpResponse:
    """The list alone, which shows by itself who has joined since. Opened as a page it is the one that holds it."""
    if not answers.is_region(request):
        return redirect("host_new")
    return render(request, "fleet/_join_tokens.html", {"tokens": join_tokens.newest_first()})


@require_POST
@needs(Role.ADMIN)
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    back = reverse("host_new")
    try:
        token = join_tokens.revoke(token_id, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"No machine joins with “{token.name}” any more. Hosts that have joined stay.", back)


@require_POST
@needs(Role.ADMIN)
def revoke_host(request: HttpRequest, name: str) -> HttpResponse:
    host = get_object_or_404(Host, name=name)
    back = reverse("host", args=[name])
    try:
        actions.revoke_host(host.pk, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"{name} is cut off: its reports are refused. Its servers go on.", back)


def _context(request: HttpRequest, form: JoinTokenForm, token: JoinToken | None) -> dict[str, Any]:
    return {
        "section": "hosts",
        "form": form,
        "token": token,
        "joined": _joined_with(token) if token else [],
        "tokens": join_tokens.newest_first(),
        "for_this_machine_only": joining.is_for_this_machine_only(request),
        "shared_login": joining.hosts_share_a_login(),
    }


def _token(text: str) -> JoinToken | None:
    return JoinToken.objects.filter(pk=text).first() if text.isdecimal() and len(text) < 19 else None


def _joined_with(token: JoinToken) -> QuerySet[Host]:
    return Host.objects.filter(login__token=token).prefetch_related("gpus")


def _first_time(request: HttpRequest, form: JoinTokenForm) -> bool:
    if answers.first_time(request):
        return True
    form.add_error(None, "This form was sent already, and the command was shown then. The token is in the list below.")
    return False
