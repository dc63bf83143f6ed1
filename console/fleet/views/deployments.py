"""A deployment: its yard, and the forms that add and change it."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console import answers
from console.accounts.access import actor_of, needs
from console.accounts.models import Role
from console.fleet import actions
from console.fleet.errors import FleetError
from console.fleet.forms import CloneForm, DeploymentForm
from console.fleet.models import Deployment
from console.fleet.pages.overview import COLUMNS, MODE_TEXT, MODE_WHY, shown_mode
from console.fleet.pages.pairs import beside_the_yard
from console.fleet.pages.revisions import told_revisions
from console.fleet.states import MoveStatus, ServerRole
from console.gateway import loads
from console.live.events import RequestRow, ServerCard
from console.live.snapshot import yard as yard_of
from console.traffic.queries import latest_rows

LATEST_SHOWN = 20
MOVE_STEPS = [
    (MoveStatus.DRAINING, "Drain"),
    (MoveStatus.STOPPING, "Stop"),
    (MoveStatus.STARTING, "Start"),
    (MoveStatus.VERIFYING, "Verify"),
    (MoveStatus.DONE, "Ready"),
]


@require_safe
@needs(Role.VIEWER)
def yard(request: HttpRequest, name: str) -> HttpResponse:
    deployment = get_object_or_404(Deployment, name=name)
    seen = yard_of(deployment.pk, loads.read())
    if seen is None:
        raise Http404
    columns = [
        {"role": role, "label": role.label, "what": what, "cards": [c for c in seen["servers"] if c["role"] == role]}
        for role, what in COLUMNS
    ]
    mode = shown_mode(seen["mode"], seen["servers"])
    context = {
        "section": "deployments",
        "deployment": deployment,
        "mode": mode,
        "mode_text": MODE_TEXT.get(mode, mode),
        "mode_why": MODE_WHY.get(mode, ""),
        "columns": columns,
        "role_choices": ServerRole.choices,
        "open_move": next((move for move in seen["moves"] if move["finished_at"] is None), None),
        "move_steps": MOVE_STEPS,
        **beside_the_yard(deployment),
        "latest": latest_rows(deployment.pk, LATEST_SHOWN)[::-1],
        "blank_card": BLANK_CARD,
        "blank_request": BLANK_REQUEST,
        "base_url": request.build_absolute_uri("/").rstrip("/"),
    }
    return render(request, "fleet/deployment.html", context)


@needs(Role.OPERATOR)
def new(request: HttpRequest) -> HttpResponse:
    actor = actor_of(request)
    form = DeploymentForm(request.POST or None, admin=actor.can(Role.ADMIN))
    context = {"section": "deployments", "form": form}
    if request.method != "POST":
        return render(request, "fleet/deployment_form.html", context)
    if form.is_valid():
        try:
            made = actions.create_deployment(actor, form.data_for_create())
        except FleetError as error:
            form.refuse(error)
        else:
            return redirect("deployment", made.name)
    return answers.shown_again(request, "fleet/deployment_form.html", context)


@needs(Role.OPERATOR)
def edit(request: HttpRequest, name: str) -> HttpResponse:
    actor = actor_of(request)
    deployment = get_object_or_404(Deployment, name=name)
    form = DeploymentForm(request.POST or None, admin=actor.can(Role.ADMIN), deployment=deployment)
    context = {"section": "deployments", "form": form, "deployment": deployment}
    if request.method != "POST":
        return render(request, "fleet/deployment_form.html", context)
    before = deployment.revision
    if form.is_valid():
        try:
            changed = actions.update_deployment(deployment.pk, actor, form.data_for_update(), form.reason())
        except FleetError as error:
            form.refuse(error)
        else:
            follows = "Servers that run keep their arguments until they are started again."
            if changed.revision == before:
                follows = "It holds at once."
            return answers.done(request, f"Saved. {follows}", reverse("deployment", args=[changed.name]))
    return answers.shown_again(request, "fleet/deployment_form.html", context)


@needs(Role.OPERATOR)
def clone(request: HttpRequest, name: str) -> HttpResponse:
    """A new deployment with the same settings, and no server yet."""
    source = get_object_or_404(Deployment, name=name)
    form = CloneForm(request.POST or None)
    context = {"section": "deployments", "form": form, "deployment": source}
    if request.method != "POST":
        return render(request, "fleet/clone_form.html", context)
    if form.is_valid():
        chosen = form.cleaned_data["name"]
        try:
            served = form.cleaned_data["served_model_name"] or chosen
            made = actions.clone_deployment(source.pk, actor_of(request), chosen, served)
        except FleetError as error:
            form.refuse(error)
        else:
            return answers.done(request, f"{made.name} is like {name}.", reverse("deployment", args=[made.name]))
    return answers.shown_again(request, "fleet/clone_form.html", context)


@require_safe
@needs(Role.VIEWER)
def revisions(request: HttpRequest, name: str) -> HttpResponse:
    deployment = get_object_or_404(Deployment, name=name)
    context = {
        "section": "deployments",
        "deployment": deployment,
        "revisions": told_revisions(deployment),
        "servers": deployment.servers.holding_gpu().filter(revision__lt=deployment.revision),
    }
    return render(request, "fleet/revisions.html", context)


@require_POST
@needs(Role.OPERATOR)
def roll_back(request: HttpRequest, name: str, number: int) -> HttpResponse:
    deployment = get_object_or_404(Deployment, name=name)
    back = reverse("deployment_revisions", args=[name])
    try:
        changed = actions.roll_back(deployment.pk, number, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    text = f"The settings of revision {number} are back, as revision {changed.revision}. Servers take them at a start."
    return answers.done(request, text, back)


@require_POST
@needs(Role.ADMIN)
def delete(request: HttpRequest, name: str) -> HttpResponse:
    deployment = get_object_or_404(Deployment, name=name)
    try:
        actions.delete_deployment(deployment.pk, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, reverse("deployment_edit", args=[name]))
    return answers.done(request, f"Deployment {name} is deleted.", reverse("overview"))


BLANK_CARD = ServerCard(
    id=0,
    name="",
    deployment="",
    host="",
    adopted=False,
    gpus=[],
    role="",
    state="",
    state_text="",
    state_since=0.0,
    generation=0,
    phase="",
    inflight=0,
    handoffs=0,
    running=None,
    waiting=None,
    kv_usage=None,
    tokens_per_s=None,
    engine_at=None,
    degradations=[],
    failure={},
    url="",
    can_move_to=[],
    may_start=False,
    may_stop=False,
)
"""What the page's script copies for a server that appears later."""
BLANK_REQUEST: dict[str, Any] = dict.fromkeys(RequestRow.__annotations__) | {"request_id": "0", "t": 0.0}
