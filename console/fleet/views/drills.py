"""Killing a simulated server's engine on purpose."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from console import answers
from console.accounts.access import actor_of, needs
from console.accounts.models import Role
from console.fleet import actions, drills
from console.fleet.errors import FleetError
from console.fleet.models import Server


@needs(Role.OPERATOR)
def ask(request: HttpRequest, server_id: int) -> HttpResponse:
    """GET says what will happen; POST does it."""
    server = get_object_or_404(Server.objects.with_names(), pk=server_id)
    if request.method != "POST":
        return render(request, _template(request), _context(server))
    try:
        actions.drill(server_id, actor_of(request), request.POST.get("reason", ""))
    except FleetError as error:
        return answers.shown_again(request, _template(request), _context(server, error.message), error.status)
    return answers.done(request, f"The engine of {server.name} is being killed.", reverse("server", args=[server_id]))


def _template(request: HttpRequest) -> str:
    return "fleet/_drill_form.html" if answers.is_region(request) else "fleet/drill_form.html"


def _context(server: Server, error: str = "") -> dict[str, object]:
    problem = error or drills.why_not(server)
    return {
        "section": "deployments",
        "server": server,
        "problem": problem,
        "consequences": [] if problem else drills.consequences(server),
    }
