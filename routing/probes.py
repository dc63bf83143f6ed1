"""What anybody may ask of a server that is about no model: whether it works, its version, how much it has to do."""

from collections.abc import Mapping

from routing.asides import Told, first_answer
from routing.ask import hashed_key_of, headers_for_servers, may_use
from routing.backend import Backend
from routing.errors import NotInTable, Refusal
from routing.paths import OPEN
from routing.reply import Request
from routing.table import Table


async def probe(request: Request, table: Table, backends: Mapping[str, Backend]) -> Told:
    """A server's answer, of the deployments that the key opens in the order of their names. Raises `Refusal`."""
    hashed_key = hashed_key_of(request)
    deployments = sorted(table.deployments.values(), key=lambda deployment: deployment.name)
    if request.path not in OPEN:
        deployments = [deployment for deployment in deployments if may_use(deployment, hashed_key)]
        if table.deployments and not deployments:
            raise NotInTable(401, "Send an inference key as `Authorization: Bearer KEY`.", kind="AuthenticationError")
    told = await first_answer(request.method, request.path, headers_for_servers(request), deployments, backends)
    if told is not None:
        return told
    refusal = Refusal if table.deployments else NotInTable
    raise refusal(503, "No server can answer now. Try again soon.", kind="ServiceUnavailableError", retry_after_s=5)
