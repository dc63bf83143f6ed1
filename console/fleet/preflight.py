"""What would keep a server from starting or from being useful, before it is started.

Some of it only the console can know: what other servers hold, which hosts there are, who the server would pair with.
The rest its host finds out.
"""

from ipaddress import ip_address

from console.fleet.models import Deployment, Host, Server
from console.fleet.states import ServerRole, ServerState
from console.launch import pairs, remote
from console.launch.contracts import Check, LaunchSpec

OPPOSITE = {ServerRole.PREFILL: ServerRole.DECODE, ServerRole.DECODE: ServerRole.PREFILL}


def run(deployment: Deployment, host: Host, spec: LaunchSpec) -> list[Check]:
    """Ours first, then the host's. Raises Unavailable when the host does not answer in time."""
    return [*here(deployment, host, spec), *remote.preflight(host, spec)]


def here(deployment: Deployment, host: Host, spec: LaunchSpec) -> list[Check]:
    """What the console's own tables tell; asks nobody."""
    checks = [_maintenance(host), _held_gpus(host, spec), _reachable_address(host)]
    if spec["role"] in OPPOSITE:
        checks.append(_pairs(deployment, spec))
    return checks


def _maintenance(host: Host) -> Check:
    if host.maintenance:
        return _failed(
            "maintenance", "Maintenance", f"Host {host.name} is in maintenance.", "End it, or choose another host."
        )
    return _ok("maintenance", "Maintenance", f"Host {host.name} takes launches.")


def _held_gpus(host: Host, spec: LaunchSpec) -> Check:
    wanted = set(spec["gpu_indexes"])
    for other in Server.objects.filter(host=host).exclude(pk=spec["server_id"]):
        shared = wanted & set(other.gpu_indexes)
        if shared and other.holds_gpu:
            detail = f"GPU {min(shared)} is held by {other.name}, which is {other.state}."
            return _failed("gpus_of_servers", "GPUs of other servers", detail, f"Stop {other.name}, or take another.")
    return _ok("gpus_of_servers", "GPUs of other servers", "No other server holds them.")


def _reachable_address(host: Host) -> Check:
    """Two agents on one machine may well meet at 127.0.0.1; agents on two machines cannot."""
    machine = host.inventory.get("hostname")
    others = [
        other.name
        for other in Host.objects.exclude(pk=host.pk).exclude(last_seen_at=None)
        if other.inventory.get("hostname") != machine
    ]
    title = "Address for other hosts"
    if others and _is_loopback(host.address):
        detail = f"{others[0]} cannot reach this host at {host.address}, so no KV can travel between them."
        instruction = "Start the agent with --address and its address in their common network."
        return Check(code="address_for_others", title=title, result="warning", detail=detail, instruction=instruction)
    return _ok("address_for_others", title, f"Servers here are reached at {host.address}.")


def _pairs(deployment: Deployment, spec: LaunchSpec) -> Check:
    mine = pairs.Side(deployment.model, pairs.options_of(spec["argv"]), deployment.connector)
    role = ServerRole(spec["role"])
    peers = Server.objects.with_names().filter(deployment=deployment, role=OPPOSITE[role])
    running = [peer for peer in peers.exclude(pk=spec["server_id"]) if peer.state == ServerState.READY]
    for peer in running:
        other = pairs.side_of(peer)
        reason = pairs.why_illegal(mine, other) if role == ServerRole.PREFILL else pairs.why_illegal(other, mine)
        if reason is not None:
            return _failed(
                "pairs", "Pairs", f"With {peer.name}: {reason}", f"Restart {peer.name} with the same arguments."
            )
    if not running:
        return _ok("pairs", "Pairs", f"There is no ready {OPPOSITE[role]} server to pair with yet.")
    return _ok("pairs", "Pairs", f"It can pair with {', '.join(peer.name for peer in running)}.")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _ok(code: str, title: str, detail: str) -> Check:
    return Check(code=code, title=title, result="ok", detail=detail, instruction="")


def _failed(code: str, title: str, detail: str, instruction: str) -> Check:
    return Check(code=code, title=title, result="failed", detail=detail, instruction=instruction)
