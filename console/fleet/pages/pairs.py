"""Which prefill server can hand over to which decode server, and how fast: a matrix."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from console.fleet.models import Deployment, Pair, Server
from console.fleet.states import HOLDS_GPU, PairState, ServerRole, ServerState
from console.gateway import loads
from console.gateway.loads import avoided_in

SAMPLE_PROMPT_TOKENS = 4096
MAY_PAIR = (ServerState.VERIFYING, ServerState.READY)
"""What was tried of a pair holds while both of it are in one of these."""
CELLS_BESIDE_THE_YARD = 144
"""A larger matrix has a page of its own: it costs more than all the rest of the yard."""


@dataclass(frozen=True)
class Standing:
    """What holds of a pair now: in words, with their colour, and what more there is to say of it."""

    words: str
    kind: str
    more: str = ""


@dataclass(frozen=True)
class Cell:
    """`state` is that of the present starts: a pair that was verified before a restart is not verified now."""

    pair: Pair | None
    state: PairState
    standing: Standing
    ms_for_prompt: float | None


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
    avoided = avoided_in(loads.read())
    running = deployment.servers.filter(state__in=HOLDS_GPU).exclude(role=ServerRole.PLAIN).with_pairs()
    decodes = [server for server in running if server.role == ServerRole.DECODE]
    known = {(pair.prefill_id, pair.decode_id): pair for decode in decodes for pair in decode.pairs()}
    rows = [
        Row(server, [_cell(server, decode, known.get((server.pk, decode.pk)), avoided) for decode in decodes])
        for server in running
        if server.role == ServerRole.PREFILL
    ]
    return Matrix(decodes, rows)


def beside_the_yard(deployment: Deployment) -> dict[str, object]:
    """For the region of a deployment's page: the matrix, or of a large fleet only how many pairs there are."""
    count = count_of(deployment)
    matrix = matrix_of(deployment) if count.total <= CELLS_BESIDE_THE_YARD else None
    return {"matrix": matrix, "pair_count": count}


def count_of(deployment: Deployment) -> PairCount:
    """Of its ready servers; two queries."""
    roles = deployment.servers.filter(state=ServerState.READY).values_list("role", flat=True)
    counts = Counter(roles)
    verified = Pair.objects.in_use().filter(prefill__deployment=deployment).count()
    return PairCount(counts[ServerRole.PREFILL] * counts[ServerRole.DECODE], verified)


def _cell(prefill: Server, decode: Server, pair: Pair | None, avoided: Mapping[int, str]) -> Cell:
    standing = standing_of(prefill, decode, pair, avoided)
    if pair is None or not pair.is_current:
        return Cell(pair, PairState.UNVERIFIED, standing, None)
    return Cell(pair, PairState(pair.state), standing, pair.transfer_ms_for(SAMPLE_PROMPT_TOKENS))


def standing_of(prefill: Server, decode: Server, pair: Pair | None, avoided: Mapping[int, str]) -> Standing:
    """Whether requests go through it, and if not, why. `avoided` as in `avoided_in`."""
    both = (prefill, decode)
    if idle := next((one for one in both if one.state not in MAY_PAIR), None):
        return _without(idle, pair)
    if pair is None or not pair.is_current:
        return Standing("Not verified since its start" if pair else PairState.UNVERIFIED.label, "rest")
    if pair.state != PairState.VERIFIED:
        kind = "bad" if pair.state == PairState.FAILED else "rest"
        return Standing(pair.get_state_display(), kind, pair.reason)
    if late := next((one for one in both if one.state != ServerState.READY), None):
        return _without(late, pair)
    if failing := next((one for one in both if one.pk in avoided), None):
        more = f"{failing.name} failed: {avoided[failing.pk]}. They try again by themselves."
        return Standing(f"No traffic: routers avoid {failing.name}", "warn", more)
    return Standing(pair.get_state_display(), "good", pair.reason)


def _without(idle: Server, pair: Pair | None) -> Standing:
    is_verified = pair is not None and pair.is_current and pair.state == PairState.VERIFIED
    if is_verified and idle.is_silent_but_used:
        return Standing(f"Verified, {idle.name} unreachable", "warn", "Requests still go through it while it answers.")
    return Standing(f"No traffic: {idle.name} is {idle.get_state_display().lower()}", "rest")
