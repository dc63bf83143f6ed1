"""One server: its page, its log, starting and stopping it, and the form that adds one."""

from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.request import QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe
from django_htmx.http import HttpResponseClientRefresh

from console import answers
from console.accounts.access import actor_of, needs
from console.accounts.audit import Actor
from console.accounts.models import Role
from console.fleet import actions, preflight, starting
from console.fleet.cards import server_card
from console.fleet.errors import FleetError
from console.fleet.forms import ServerForm
from console.fleet.models import Deployment, Host, Server
from console.fleet.move_preview import losing
from console.fleet.pages import launching
from console.fleet.pages.overview import COLUMNS
from console.fleet.pages.server import details
from console.fleet.states import ServerRole, ServerState
from console.gateway import loads
from console.launch import command, remote
from console.launch.contracts import LaunchSpec

LOG_SHOWN_BYTES = 64 * 1024
LOG_DOWNLOAD_BYTES = 8 * 1024 * 1024


@require_safe
@needs(Role.VIEWER)
def page(request: HttpRequest, server_id: int) -> HttpResponse:
    server = _server(server_id)
    if answers.is_region(request) and request.GET.get("generation") not in (None, str(server.generation)):
        return HttpResponseClientRefresh()  # started anew: its command and its log are others now
    context = {"section": "deployments", "server": server, "role_choices": ServerRole.choices, **details(server)}
    return render(request, "fleet/_server.html" if answers.is_region(request) else "fleet/server.html", context)


@require_safe
@needs(Role.VIEWER)
def log(request: HttpRequest, server_id: int) -> HttpResponse:
    """The last lines, for the region that follows the log. A host that is silent is said in its place."""
    server = _server(server_id)
    context = {"section": "deployments", "server": server, **_tail(server, LOG_SHOWN_BYTES)}
    return render(request, "fleet/_log.html" if answers.is_region(request) else "fleet/log.html", context)


@require_safe
@needs(Role.VIEWER)
def log_download(request: HttpRequest, server_id: int) -> HttpResponse:
    server = _server(server_id)
    found = _tail(server, LOG_DOWNLOAD_BYTES)
    if found["tail"] is None:
        status = 503 if found["problem"] else 404
        return render(request, "fleet/log.html", {"section": "deployments", "server": server, **found}, status=status)
    response = HttpResponse(found["tail"]["text"], content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{server.name}-{server.generation}.log"'
    return response


@require_POST
@needs(Role.OPERATOR)
def start(request: HttpRequest, server_id: int) -> HttpResponse:
    back = reverse("server", args=[server_id])
    try:
        server = actions.start(server_id, actor_of(request), request.POST.get("reason", ""))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"{server.name} is being started on {server.own_host.name}.", back)


@needs(Role.OPERATOR)
def stop(request: HttpRequest, server_id: int) -> HttpResponse:
    """GET asks, with what a stop means now; POST stops."""
    server = _server(server_id)
    if request.method == "POST":
        return _stop(request, server)
    return render(request, _asked(request, "stop"), _stop_context(server))


def _stop(request: HttpRequest, server: Server) -> HttpResponse:
    force, confirmed = request.POST.get("force") == "on", request.POST.get("confirmed") == "on"
    reason = request.POST.get("reason", "")
    try:
        stopped = actions.stop(server.pk, actor_of(request), reason, force, confirmed)
    except FleetError as error:
        context = {**_stop_context(_server(server.pk)), "error": error.message, "reason": reason, "force": force}
        return answers.shown_again(request, _asked(request, "stop"), context, error.status)
    text = f"{server.name} takes no new request and ends." if stopped.state == ServerState.DRAINING else ""
    return answers.done(request, text or f"{server.name} is being ended.", reverse("server", args=[server.pk]))


@require_POST
@needs(Role.OPERATOR)
def cancel_stop(request: HttpRequest, server_id: int) -> HttpResponse:
    back = reverse("server", args=[server_id])
    try:
        server = actions.cancel_stop(server_id, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    return answers.done(request, f"{server.name} takes traffic again.", back)


@require_POST
@needs(Role.OPERATOR)
def delete(request: HttpRequest, server_id: int) -> HttpResponse:
    server = _server(server_id)
    try:
        actions.delete_server(server_id, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, reverse("server", args=[server_id]))
    return answers.done(request, f"{server.name} is deleted.", reverse("deployment", args=[server.deployment.name]))


@needs(Role.OPERATOR)
def new(request: HttpRequest, name: str) -> HttpResponse:
    """Shows the exact command of what is chosen so far; sending it adds the server and, if asked, starts it."""
    deployment = get_object_or_404(Deployment, name=name)
    given: QueryDict = request.POST if request.method == "POST" else request.GET
    host = _chosen_host(given, deployment)
    if request.method != "POST":
        if not answers.is_region(request) and "gpu_indexes" not in given:
            given = given.copy()
            given.setlist("gpu_indexes", launching.a_free_gpu(host))
        initial = {"role": given.get("role", ServerRole.PLAIN), "host": host, "name": given.get("name", "")}
        form = ServerForm(initial=initial, host=host)
        region = "fleet/_server_choices.html" if answers.is_region(request) else "fleet/server_form.html"
        return render(request, region, _new_context(deployment, host, form, given))
    form = ServerForm(request.POST, host=host)
    if not form.is_valid():
        return _new_again(request, deployment, host, form)
    if not answers.first_time(request):
        return redirect("deployment", deployment.name)
    try:
        server = _add(actor_of(request), deployment, form, then_start="start" in request.POST)
    except FleetError as error:
        answers.forget_first_time(request)
        form.refuse(error)
        return _new_again(request, deployment, host, form)
    if "start" in request.POST:
        words = f"{server.name} is being started."
    else:
        words = f"{server.name} is added; nothing runs yet. {starting.held_gpu(server)}".strip()
    return answers.done(request, words, reverse("deployment", args=[deployment.name]))


def _add(actor: Actor, deployment: Deployment, form: ServerForm, then_start: bool) -> Server:
    """Both or neither: a server that cannot be started now is not left behind half wanted."""
    chosen = form.cleaned_data
    with transaction.atomic():
        server = actions.add_server(
            actor,
            deployment_id=deployment.pk,
            host_id=chosen["host"].pk,
            role=chosen["role"],
            gpu_indexes=chosen["gpu_indexes"],
            name=chosen["name"],
        )
        return actions.start(server.pk, actor) if then_start else server


def _new_again(request: HttpRequest, deployment: Deployment, host: Host | None, form: ServerForm) -> HttpResponse:
    context = _new_context(deployment, host, form, request.POST)
    return answers.shown_again(request, "fleet/server_form.html", context)


def _new_context(deployment: Deployment, host: Host | None, form: ServerForm, given: QueryDict) -> dict[str, Any]:
    spec, problem = _preview(deployment, host, given)
    gpus = launching.gpu_choices(host, given.getlist("gpu_indexes"))
    return {
        "section": "deployments",
        "deployment": deployment,
        "form": form,
        "roles": [(role, role.label, what) for role, what in COLUMNS],
        "host": host,
        "hosts": list(Host.objects.all()),
        "gpus": gpus,
        "none_chosen": launching.why_none_is_chosen(host, gpus),
        "spec": spec,
        "shell": command.shell_text(spec) if spec else "",
        "problem": problem,
        "taken": launching.taken(host, spec["gpu_indexes"]) if host and spec else [],
        "checks": _checks(deployment, host, spec) if host and spec and "check" in given else None,
    }


def _preview(deployment: Deployment, host: Host | None, given: QueryDict) -> tuple[LaunchSpec | None, str]:
    if host is None:
        return None, "Choose a host first."
    gpus = launching.numbers(given.getlist("gpu_indexes"))
    role = given.get("role", ServerRole.PLAIN)
    try:
        return actions.launch_preview(deployment, host, role, gpus, given.get("name", "").strip()), ""
    except FleetError as error:
        return None, error.message


def _checks(deployment: Deployment, host: Host, spec: LaunchSpec) -> launching.Checked:
    return launching.checked(lambda: preflight.run(deployment, host, spec))


def _chosen_host(given: QueryDict, deployment: Deployment) -> Host | None:
    wanted = given.get("host")
    if wanted:
        return Host.objects.filter(name=wanted).first()
    return launching.best_host(deployment)


def _server(server_id: int) -> Server:
    return get_object_or_404(Server.objects.with_names(), pk=server_id)


def _asked(request: HttpRequest, deed: str) -> str:
    return f"fleet/_{deed}_form.html" if answers.is_region(request) else f"fleet/{deed}_form.html"


def _stop_context(server: Server) -> dict[str, Any]:
    load = loads.read().get(server.pk)
    return {
        "section": "deployments",
        "server": server,
        "card": server_card(server, load),
        "consequences": losing(server),
        "was_last": not Server.objects.filter(
            deployment=server.deployment, role=server.role, state=ServerState.READY
        ).exclude(pk=server.pk),
    }


def _tail(server: Server, max_bytes: int) -> dict[str, Any]:
    """`tail` is None when there is none; then `problem` says why, unless the server was never started."""
    found: dict[str, Any] = {"tail": None, "problem": "", "shown_bytes": max_bytes}
    if not server.generation:
        return found
    try:
        return {**found, "tail": remote.tail(server, max_bytes)}
    except FleetError as error:
        return {**found, "problem": error.message}
