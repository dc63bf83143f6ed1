"""Pairs of a deployment: the matrix, and comparing what a pair writes with what one server writes alone."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console import answers
from console.accounts.access import actor_of, needs
from console.accounts.models import Role
from console.fleet.errors import FleetError
from console.fleet.models import Deployment, Pair
from console.fleet.pages.pairs import beside_the_yard, matrix_of
from console.launch import parity
from console.live.snapshot import mode_of


@require_safe
@needs(Role.VIEWER)
def matrix(request: HttpRequest, name: str) -> HttpResponse:
    """A region of the yard, and a page of its own."""
    deployment = get_object_or_404(Deployment, name=name)
    context: dict[str, object] = {"section": "deployments", "deployment": deployment}
    if answers.is_region(request):
        context |= {"mode": mode_of(deployment), **beside_the_yard(deployment)}
        return render(request, "fleet/_pairs.html", context)
    return render(request, "fleet/pairs.html", {**context, "matrix": matrix_of(deployment)})


@require_POST
@needs(Role.OPERATOR)
def compare(request: HttpRequest, pair_id: int) -> HttpResponse:
    """Takes as long as two short answers; the result is shown and kept in the audit trail."""
    pair = get_object_or_404(Pair.objects.select_related("prefill__deployment", "decode"), pk=pair_id)
    context: dict[str, object] = {"section": "deployments", "pair": pair, "deployment": pair.prefill.deployment}
    status = 200
    try:
        context["parity"] = parity.check(pair_id, actor_of(request))
    except FleetError as error:
        context["error"], status = error.message, error.status
    context["back"] = reverse("deployment", args=[pair.prefill.deployment.name])
    template = "fleet/_parity.html" if answers.is_region(request) else "fleet/parity.html"
    return render(request, template, context, status=status)
