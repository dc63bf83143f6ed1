"""What the page of one server tells: how its present start went, its command, its pairs and its moves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from console.fleet import drills, starting
from console.fleet.cards import PHASE_WORDS, server_card
from console.fleet.models import Pair, Server
from console.fleet.pages.pairs import (
    MAY_PAIR,
    SAMPLE_PROMPT_TOKENS,
    Standing,
    standing_of,
)
from console.fleet.states import ServerRole
from console.gateway import loads
from console.launch import command
from console.launch.contracts import Phase

MOVES_SHOWN = 10


@dataclass(frozen=True)
class PhaseStep:
    """A phase of the present start. `took_s` is None while it is the newest one."""

    phase: str
    words: str
    began_s: float
    took_s: float | None


@dataclass(frozen=True)
class PairRow:
    """`ms_for_prompt`: about how long the KV of a prompt of `SAMPLE_PROMPT_TOKENS` takes."""

    pair: Pair
    peer: Server
    standing: Standing
    ms_for_prompt: float | None


def details(server: Server) -> dict[str, Any]:
    told = loads.read()
    return {
        "card": server_card(server, told.get(server.pk)),
        "phases": phases(server),
        "shell": command.shell_text(server.launch_spec) if server.launch_spec else "",
        "pairs": pairs(server, loads.avoided_in(told)),
        "may_pair": server.state in MAY_PAIR or server.is_silent_but_used,
        "moves": list(server.moves.select_related("server", "deployment")[:MOVES_SHOWN]),
        "gpus": list(server.host.gpus.filter(index__in=server.gpu_indexes)) if server.host else [],
        "observed": server.observed,
        "ready_s": seconds_to_ready(server),
        "open_move": server.open_move(),
        "held_gpu": starting.hindrance(server),
        "may_drill": drills.why_not(server) is None,
    }


def seconds_to_ready(server: Server) -> float | None:
    """From asking for the present start to taking traffic."""
    if server.ready_at is None or server.started_at is None:
        return None
    return (server.ready_at - server.started_at).total_seconds()


def phases(server: Server) -> list[PhaseStep]:
    """In the order of a start, with the seconds since it was asked for."""
    times: dict[str, float] = server.observed.get("phase_times", {})
    seen = [(phase, times[phase]) for phase in get_args(Phase) if phase in times]
    if not seen:
        return []
    began = server.started_at.timestamp() if server.started_at else seen[0][1]
    ends: list[float | None] = [at for _, at in seen[1:]]
    ends.append(None)
    return [
        PhaseStep(phase, PHASE_WORDS.get(phase, phase), max(at - began, 0), None if end is None else max(end - at, 0))
        for (phase, at), end in zip(seen, ends, strict=True)
    ]


def pairs(server: Server, avoided: Mapping[int, str]) -> list[PairRow]:
    if server.role == ServerRole.PLAIN:
        return []
    found = Pair.objects.select_related("prefill", "decode").filter(
        prefill__role=ServerRole.PREFILL, decode__role=ServerRole.DECODE
    )
    if server.role == ServerRole.PREFILL:
        return [_pair_row(pair, pair.decode, avoided) for pair in found.filter(prefill=server)]
    return [_pair_row(pair, pair.prefill, avoided) for pair in found.filter(decode=server)]


def _pair_row(pair: Pair, peer: Server, avoided: Mapping[int, str]) -> PairRow:
    standing = standing_of(pair.prefill, pair.decode, pair, avoided)
    return PairRow(pair, peer, standing, pair.transfer_ms_for(SAMPLE_PROMPT_TOKENS))
