"""Hosts: the list, one host, adding one, and maintenance."""

from django.conf import settings
from django.db.models import Prefetch, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from console import answers
from console.accounts.access import actor_of, needs
from console.accounts.models import Role
from console.fleet import actions
from console.fleet import maintenance as emptying
from console.fleet.admission import login_of
from console.fleet.errors import FleetError
from console.fleet.hosts import suspect_ourselves
from console.fleet.models import Host, Server
from console.fleet.pages import host_check
from console.fleet.pages.joining import agent_command

GPU_SUMS = {
    "used_mib": Sum("gpus__memory_used_mib"),
    "total_mib": Sum("gpus__memory_total_mib"),
    "watts": Sum("gpus__power_w"),
}


@require_safe
@needs(Role.VIEWER)
def listing(request: HttpRequest) -> HttpResponse:
    servers = Prefetch("servers", Server.objects.select_related("deployment"))
    context = {
        "section": "hosts",
        "hosts": Host.objects.select_related("login")
        .prefetch_related("gpus", servers)
        .annotate(**GPU_SUMS)
        .order_by("name"),
        "all_silent": suspect_ourselves(),
        "agent_command": agent_command(request),
    }
    return render(request, "fleet/_hosts.html" if answers.is_region(request) else "fleet/hosts.html", context)


@require_safe
@needs(Role.VIEWER)
def page(request: HttpRequest, name: str) -> HttpResponse:
    host = get_object_or_404(Host, name=name)
    servers = list(host.servers.select_related("deployment"))
    gpus = [
        {
            "gpu": gpu,
            "servers": [server for server in servers if gpu.index in server.gpu_indexes],
            "memory_share": (gpu.memory_used_mib or 0) / gpu.memory_total_mib if gpu.memory_total_mib else 0,
        }
        for gpu in host.gpus.all()
    ]
    context = {
        "section": "hosts",
        "host": host,
        "login": login_of(host),
        "gpus": gpus,
        "servers": servers,
        "inventory": host.inventory,
        "simulated_only": host_check.simulated_only(host),
        "silent_after_s": settings.HOST_UNREACHABLE_AFTER_S,
    }
    if answers.is_region(request):
        return render(request, "fleet/_host.html", context)
    return render(request, "fleet/host.html", context | host_check.fresh(host))


@require_safe
@needs(Role.OPERATOR)
def check(request: HttpRequest, name: str) -> HttpResponse:
    """Asks the host what would keep a server from starting there. Starts and changes nothing."""
    host = get_object_or_404(Host, name=name)
    context = {"section": "hosts", "host": host, **host_check.answered(host, request.GET)}
    return render(request, "fleet/_host_check.html" if answers.is_region(request) else "fleet/host_check.html", context)


@require_POST
@needs(Role.ADMIN)
def maintenance(request: HttpRequest, name: str) -> HttpResponse:
    host = get_object_or_404(Host, name=name)
    on = request.POST.get("on") == "1"
    back = reverse("host", args=[name])
    try:
        actions.set_maintenance(host.pk, on, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, back)
    if on and not answers.is_region(request):
        return redirect(back)  # the page itself says what maintenance means
    text = f"{name} is in maintenance: nothing new is launched there; what runs goes on."
    return answers.done(request, text if on else f"{name} takes launches again.", back)


@needs(Role.OPERATOR)
def drain(request: HttpRequest, name: str) -> HttpResponse:
    """GET tells what emptying the host would mean; POST puts it into maintenance and stops its servers."""
    host = get_object_or_404(Host, name=name)
    problem, status = "", 200
    if request.method == "POST":
        reason, confirmed = request.POST.get("reason", ""), request.POST.get("confirmed") == "on"
        try:
            emptying.drain_host(host.pk, actor_of(request), reason=reason, confirmed=confirmed)
        except FleetError as error:
            problem, status = error.message, error.status
        else:
            text = f"{name} takes no launches, and its servers end as their requests do."
            return answers.done(request, text, reverse("host", args=[name]))
    context = {"section": "hosts", "host": host, "preview": emptying.preview(host), "error": problem}
    template = "fleet/_drain_form.html" if answers.is_region(request) else "fleet/drain_form.html"
    return render(request, template, context, status=status)


@require_POST
@needs(Role.ADMIN)
def remove(request: HttpRequest, name: str) -> HttpResponse:
    host = get_object_or_404(Host, name=name)
    try:
        actions.remove_host(host.pk, actor_of(request))
    except FleetError as error:
        return answers.refused(request, error, reverse("host", args=[name]))
    return answers.done(request, f"Host {name} is removed.", reverse("hosts"))
