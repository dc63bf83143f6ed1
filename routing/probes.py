"""What anybody may ask of a server that is about no model: whether it works, its version, how much it has to do."""

from collections.abc import Mapping
from typing import Final

from routing.asides import AWAY_FROM_STREAMS, Told, first_answer
from routing.ask import hashed_key_of, headers_for_servers, may_use
from routing.backend import Backend
from routing.errors import NotInTable, Refusal
from routing.paths import DESCRIPTION, OPEN
from routing.reply import Request
from routing.table import Table, Timeouts

SLOWLY: Final = Timeouts(connect_s=1.0, first_byte_s=15.0, idle_s=2.0)
"""A server composes its description when it is first asked for it: for a second or more it does nothing else."""


async def probe(request: Request, table: Table, backends: Mapping[str, Backend]) -> Told:
    """A server's answer, of the deployments that the key opens in the order of their names. Raises `Refusal`."""
    hashed_key = hashed_key_of(request)
    deployments = sorted(table.deployments.values(), key=lambda deployment: deployment.name)
    if request.path not in OPEN:
        deployments = [deployment for deployment in deployments if may_use(deployment, hashed_key)]
        if table.deployments and not deployments:
            raise NotInTable(401, "Send an inference key as `Authorization: Bearer KEY`.", kind="AuthenticationError")
    question = request.method, request.path, headers_for_servers(request), deployments, backends
    if request.path == DESCRIPTION:
        told = await first_answer(*question, order=AWAY_FROM_STREAMS, timeouts=SLOWLY)
    else:
        told = await first_answer(*question)
    if told is not None:
        return told
    refusal = Refusal if table.deployments else NotInTable
    raise refusal(503, "No server can answer now. Try again soon.", kind="ServiceUnavailableError", retry_after_s=5)
