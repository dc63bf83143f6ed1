"""What would keep a server from starting or from being useful, before it is started.

Some of it only the console can know: what other servers hold, which hosts there are, who the server would pair with.
The rest its host finds out.
"""

from ipaddress import ip_address

from console.fleet import starting
from console.fleet.models import Deployment, Engine, Host, Server
from console.fleet.states import ServerRole, ServerState
from console.launch import command, pairs, remote
from console.launch.contracts import Check, LaunchSpec

OPPOSITE = {ServerRole.PREFILL: ServerRole.DECODE, ServerRole.DECODE: ServerRole.PREFILL}


def run(deployment: Deployment, host: Host, spec: LaunchSpec) -> list[Check]:
    """Ours first, then the host's. Raises Unavailable when the host does not answer in time."""
    return [*here(deployment, host, spec), *remote.preflight(host, spec)]


def run_for_host(host: Host) -> list[Check]:
    """What would keep any prefill or decode server of vLLM from starting there, on the GPUs that no server holds.

    Raises Unavailable when the host does not answer in time.
    """
    held = _holders(host)
    free = [index for index in host.gpus.values_list("index", flat=True) if index not in held]
    theirs = remote.preflight(host, _spec_of_any_server(host, free))
    if held and not free:  # the host looked at none
        theirs = [check for check in theirs if check["code"] != "gpus"]
    return [_maintenance(host), _gpus_in_use(held, free), _reachable_address(host), *theirs]


def _spec_of_any_server(host: Host, gpu_indexes: list[int]) -> LaunchSpec:
    nobodys = Deployment(name="", model="", served_model_name="", engine=Engine.VLLM)
    plan = starting.Plan(deployment=nobodys, host=host, role=ServerRole.PREFILL, gpu_indexes=gpu_indexes, name="")
    return command.masked(starting.spec_for(plan))


def _holders(host: Host) -> dict[int, Server]:
    """Index of each GPU that a server holds to that server."""
    return {index: server for server in host.servers.all() if server.holds_gpu for index in server.gpu_indexes}


def _gpus_in_use(held: dict[int, Server], free: list[int]) -> Check:
    title = "GPUs of other servers"
    if not held:
        return _ok("gpus_of_servers", title, "No server holds a GPU.")
    detail = "; ".join(f"GPU {index} is held by {server.name}" for index, server in sorted(held.items())) + "."
    if free:
        return _ok("gpus_of_servers", title, detail)
    instruction = "Stop or move one of them to make room for another server."
    return Check(code="gpus_of_servers", title=title, result="warning", detail=detail, instruction=instruction)


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
    other = starting.holder_of(host, spec["gpu_indexes"], besides=spec["server_id"])
    if other is not None:
        index, server = other
        detail = f"GPU {index} is held by {server.name}, which is {server.state}."
        return _failed("gpus_of_servers", "GPUs of other servers", detail, f"Stop {server.name}, or take another.")
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
