"""Moving a server: asking with a preview, the page of one move, cancelling, and the ways out of a failed one."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console import answers
from console.accounts.access import actor_of, needs
from console.accounts.models import Role
from console.fleet import moves
from console.fleet.errors import FleetError, Invalid
from console.fleet.models import Move, Server
from console.fleet.move_preview import MovePreview
from console.fleet.pages.move import details
from console.fleet.states import ServerRole
from console.fleet.views.deployments import MOVE_STEPS

STOP_POLLING = 286
"""What htmx takes as a good answer after which it asks no more."""


@needs(Role.OPERATOR)
def ask(request: HttpRequest, server_id: int) -> HttpResponse:
    """GET shows what the move would mean; POST begins it."""
    server = get_object_or_404(Server.objects.with_names(), pk=server_id)
    if request.method == "POST":
        return _begin(request, server)
    return _show(request, server, request.GET.get("role") or _other_role(server))


def _begin(request: HttpRequest, server: Server) -> HttpResponse:
    role, reason = request.POST.get("role", ""), request.POST.get("reason", "")
    confirmed = request.POST.get("confirmed") == "on"
    try:
        move = moves.request(server.pk, role, actor_of(request), reason=reason, confirmed=confirmed)
    except FleetError as error:
        shown = role if role in ServerRole.values else _other_role(server)
        return _show(request, server, shown, error=error)
    text = f"{server.name} moves to {move.to_role}: it takes no new request and finishes what runs."
    return answers.done(request, text, reverse("deployment", args=[server.deployment.name]))


def _show(request: HttpRequest, server: Server, role: str, error: FleetError | None = None) -> HttpResponse:
    try:
        preview = moves.preview(server.pk, role)
    except Invalid as invalid:
        error, role = invalid, _other_role(server)
        preview = moves.preview(server.pk, role)
    context = {
        "section": "deployments",
        "server": server,
        "preview": preview,
        "role": role,
        "role_label": ServerRole(role).label,
        "role_choices": [(value, label) for value, label in ServerRole.choices if value != server.role],
        "capacity": _capacity(preview),
        "error": error.message if error else "",
        "reason": request.POST.get("reason", ""),
    }
    template = "fleet/_move_form.html" if answers.is_region(request) else "fleet/move_form.html"
    return render(request, template, context, status=error.status if error else 200)


def _capacity(preview: MovePreview) -> list[tuple[str, str, int, int, int]]:
    before, during, after = preview["before"], preview["during"], preview["after"]
    return [
        ("prefill", "Prefill", before["prefill"], during["prefill"], after["prefill"]),
        ("decode", "Decode", before["decode"], during["decode"], after["decode"]),
        ("plain", "Plain", before["plain"], during["plain"], after["plain"]),
    ]


def _other_role(server: Server) -> str:
    return ServerRole.PREFILL if server.role == ServerRole.DECODE else ServerRole.DECODE


@require_safe
@needs(Role.VIEWER)
def page(request: HttpRequest, move_id: int) -> HttpResponse:
    move = _move(move_id)
    context: dict[str, Any] = {
        "section": "deployments",
        "move": move,
        "move_steps": MOVE_STEPS,
        "ways_out": moves.ways_out(move),
        **details(move),
    }
    if not answers.is_region(request):
        return render(request, "fleet/move.html", context)
    return render(request, "fleet/_move.html", context, status=STOP_POLLING if context["is_settled"] else 200)


@require_POST
@needs(Role.OPERATOR)
def cancel(request: HttpRequest, move_id: int) -> HttpResponse:
    back = reverse("move", args=[_move(move_id).pk])
    try:
        move = moves.cancel(move_id, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"{move.server.name} stays a {move.from_role} server and takes traffic again.", back)


@require_POST
@needs(Role.OPERATOR)
def force(request: HttpRequest, move_id: int) -> HttpResponse:
    back = reverse("move", args=[_move(move_id).pk])
    try:
        move = moves.force(move_id, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"What still ran on {move.server.name} is cut off; the move goes on.", back)


@require_POST
@needs(Role.OPERATOR)
def again(request: HttpRequest, move_id: int) -> HttpResponse:
    """The ways out of a failed move: retry, back, plain."""
    back = reverse("move", args=[_move(move_id).pk])
    ways = {"retry": moves.retry, "back": moves.way_back, "plain": moves.to_plain}
    way = ways.get(request.POST.get("way", ""))
    try:
        if way is None:
            raise Invalid("Choose one of the ways that the page offers.", "way")
        move = way(move_id, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(
        request, f"{move.server.name} starts as a {move.to_role} server.", reverse("move", args=[move.pk])
    )


def _move(move_id: int) -> Move:
    return get_object_or_404(Move.objects.select_related("server", "server__host", "deployment"), pk=move_id)
