"""Which prefill server can hand over to which decode server, and how fast: a matrix."""

from dataclasses import dataclass

from console.fleet.models import Deployment, Pair, Server
from console.fleet.states import HOLDS_GPU, PairState, ServerRole

SAMPLE_PROMPT_TOKENS = 4096


@dataclass(frozen=True)
class Cell:
    """`state` is that of the present starts: a pair that was verified before a restart is not verified now."""

    pair: Pair | None
    state: PairState
    ms_for_prompt: float | None

    @property
    def kind(self) -> str:
        return {PairState.VERIFIED: "good", PairState.FAILED: "bad"}.get(self.state, "rest")


@dataclass(frozen=True)
class Row:
    prefill: Server
    cells: list[Cell]


@dataclass(frozen=True)
class Matrix:
    decodes: list[Server]
    rows: list[Row]

    @property
    def is_empty(self) -> bool:
        return not self.decodes or not self.rows


def matrix_of(deployment: Deployment) -> Matrix:
    """Of its running servers; two queries."""
    running = list(deployment.servers.filter(state__in=HOLDS_GPU).exclude(role=ServerRole.PLAIN))
    decodes = [server for server in running if server.role == ServerRole.DECODE]
    known = {
        (pair.prefill_id, pair.decode_id): pair
        for pair in Pair.objects.filter(prefill__deployment=deployment).select_related("prefill", "decode")
    }
    rows = [
        Row(server, [_cell(known.get((server.pk, decode.pk))) for decode in decodes])
        for server in running
        if server.role == ServerRole.PREFILL
    ]
    return Matrix(decodes, rows)


def _cell(pair: Pair | None) -> Cell:
    if pair is None or not pair.is_current:
        return Cell(pair, PairState.UNVERIFIED, None)
    return Cell(pair, PairState(pair.state), pair.transfer_ms_for(SAMPLE_PROMPT_TOKENS))
