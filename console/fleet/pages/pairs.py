"""Which prefill server can hand over to which decode server, and how fast: a matrix."""

from collections import Counter
from dataclasses import dataclass

from console.fleet.models import Deployment, Pair, Server
from console.fleet.states import HOLDS_GPU, PairState, ServerRole, ServerState

SAMPLE_PROMPT_TOKENS = 4096
CELLS_BESIDE_THE_YARD = 144
"""A larger matrix has a page of its own: it costs more than all the rest of the yard."""


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


@dataclass(frozen=True)
class PairCount:
    """Of ready servers."""

    total: int
    verified: int


def matrix_of(deployment: Deployment) -> Matrix:
    """Of its running servers; two queries."""
    running = deployment.servers.filter(state__in=HOLDS_GPU).exclude(role=ServerRole.PLAIN).with_pairs()
    decodes = [server for server in running if server.role == ServerRole.DECODE]
    known = {(pair.prefill_id, pair.decode_id): pair for decode in decodes for pair in decode.pairs()}
    rows = [
        Row(server, [_cell(known.get((server.pk, decode.pk))) for decode in decodes])
        for server in running
        if server.role == ServerRole.PREFILL
    ]
    return Matrix(decodes, rows)


def beside_the_yard(deployment: Deployment) -> dict[str, object]:
    """For the region of a deployment's page: the matrix, or of a large fleet only how many pairs there are."""
    count = count_of(deployment)
    return {"matrix": matrix_of(deployment) if count.total <= CELLS_BESIDE_THE_YARD else None, "pair_count": count}


def count_of(deployment: Deployment) -> PairCount:
    """Of its ready servers; two queries."""
    roles = deployment.servers.filter(state=ServerState.READY).values_list("role", flat=True)
    counts = Counter(roles)
    verified = Pair.objects.current().filter(
        state=PairState.VERIFIED,
        prefill__deployment=deployment,
        prefill__state=ServerState.READY,
        decode__state=ServerState.READY,
    )
    return PairCount(counts[ServerRole.PREFILL] * counts[ServerRole.DECODE], verified.count())


def _cell(pair: Pair | None) -> Cell:
    if pair is None or not pair.is_current:
        return Cell(pair, PairState.UNVERIFIED, None)
    return Cell(pair, PairState(pair.state), pair.transfer_ms_for(SAMPLE_PROMPT_TOKENS))
