"""The check of one host on its own page: for any server, or for one of a deployment on chosen GPUs."""

from typing import Any

from django.http.request import QueryDict

from console.fleet import actions, preflight
from console.fleet.models import Deployment, Engine, Host
from console.fleet.pages import launching
from console.fleet.states import ServerRole
from console.launch.contracts import Check


def fresh(host: Host) -> dict[str, Any]:
    """Nothing asked yet."""
    return _form(host, *_opening_choice(host))


def answered(host: Host, given: QueryDict) -> dict[str, Any]:
    """With the host's answer, or with why it cannot be asked; takes seconds. A bare link asks as the form opens."""
    if "deployment" in given:
        name, role = given.get("deployment", ""), given.get("role", ServerRole.PREFILL)
        gpus = given.getlist("gpu_indexes")
    else:
        name, role, gpus = _opening_choice(host)
    found = launching.checked(lambda: _ask(host, name, role, launching.numbers(gpus)))
    results = found.get("results", [])
    return {
        **_form(host, name, role, gpus),
        "checks": found,
        "sought_vllm_in_vain": not name and simulated_only(host),
        "failed": sum(check["result"] == "failed" for check in results),
        "warned": sum(check["result"] == "warning" for check in results),
    }


def simulated_only(host: Host) -> bool:
    """Its servers, or before it has one all deployments, are of the simulated engine, which needs nothing installed."""
    engines = set(host.servers.values_list("deployment__engine", flat=True))
    return (engines or set(Deployment.objects.values_list("engine", flat=True))) == {Engine.SIMULATED}


def _opening_choice(host: Host) -> tuple[str, str, list[str]]:
    """Of the deployment that has a server there, if one has."""
    own = Deployment.objects.filter(servers__host=host).first()
    return own.name if own else "", _role_of(host, own), _first_gpu(host)


def _ask(host: Host, name: str, role: str, gpu_indexes: list[int]) -> list[Check]:
    deployment = Deployment.objects.filter(name=name).first()
    if deployment is None:
        return preflight.run_for_host(host)
    spec = actions.launch_preview(deployment, host, role, gpu_indexes)
    return preflight.run(deployment, host, spec)


def _first_gpu(host: Host) -> list[str]:
    """A free one; else any, so that the answer says who is on it."""
    return launching.a_free_gpu(host) or [str(gpu.index) for gpu in host.gpus.all()[:1]]


def _role_of(host: Host, deployment: Deployment | None) -> str:
    server = host.servers.filter(deployment=deployment).first() if deployment else None
    return server.role if server else ServerRole.PREFILL


def _form(host: Host, name: str, role: str, gpus: list[str]) -> dict[str, Any]:
    return {
        "deployments": list(Deployment.objects.values_list("name", flat=True)),
        "check_deployment": name,
        "check_role": role,
        "check_roles": ServerRole.choices,
        "check_gpus": launching.gpu_choices(host, gpus),
    }
