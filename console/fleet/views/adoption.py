"""Adopting a server that someone else started, and letting it go."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from console import answers
from console.accounts.access import actor_of, needs
from console.accounts.models import Role
from console.fleet import actions
from console.fleet.errors import FleetError
from console.fleet.forms import AdoptForm
from console.fleet.models import Deployment, Server


@needs(Role.OPERATOR)
def adopt(request: HttpRequest, name: str) -> HttpResponse:
    deployment = get_object_or_404(Deployment, name=name)
    form = AdoptForm(request.POST or None)
    context = {"section": "deployments", "deployment": deployment, "form": form}
    if request.method != "POST":
        return render(request, "fleet/adopt_form.html", context)
    if not form.is_valid():
        return answers.shown_again(request, "fleet/adopt_form.html", context)
    if not answers.first_time(request):
        return redirect("deployment", deployment.name)
    given = form.cleaned_data
    try:
        server = actions.adopt(
            actor_of(request), deployment.pk, given["url"], given["role"], given["name"], given["api_key"]
        )
    except FleetError as error:
        answers.forget_first_time(request)
        form.refuse(error)
        return answers.shown_again(request, "fleet/adopt_form.html", context, error.status)
    text = f"{server.name} is adopted as {server.role} server; it gets traffic once it is tried out."
    return answers.done(request, text, reverse("deployment", args=[deployment.name]))


@require_POST
@needs(Role.OPERATOR)
def let_go(request: HttpRequest, server_id: int) -> HttpResponse:
    server = get_object_or_404(Server.objects.with_names(), pk=server_id)
    force = request.POST.get("force") == "on"
    try:
        kept = actions.let_go(server_id, actor_of(request), request.POST.get("reason", ""), force=force)
    except FleetError as error:
        return answers.refused(request, error, reverse("server", args=[server_id]))
    home = reverse("deployment", args=[server.deployment.name])
    if kept is None:
        return answers.done(request, f"{server.name} is let go. Its process goes on.", home)
    return answers.done(request, f"{server.name} takes no new request and is let go after its last one.", home)
