"""On demand: does a pair write what one server alone writes? A pair whose KV does not fit can write fluent nonsense."""

from typing import TypedDict

from console.accounts.audit import Actor, record
from console.accounts.models import Role
from console.fleet import guards
from console.fleet.errors import Conflict, NotFound, Unavailable
from console.fleet.models import Pair, Server
from console.fleet.states import ServerRole, ServerState
from console.launch import canary, pairs

TOKENS = 24
WORDS = 48


class Parity(TypedDict):
    same: bool
    prompt: str
    split: str
    alone: str
    alone_on: str


def check(pair_id: int, actor: Actor) -> Parity:
    """One new prompt, temperature 0. Takes as long as two short answers.

    On GPUs two runs of one server may differ in rare tokens as well, so a difference is an alarm to look into, not a
    proof; it does not take the pair out of traffic. Raises NotFound, Conflict, Unavailable.
    """
    guards.need(actor, Role.OPERATOR, "check a pair")
    pair = _ready_pair(pair_id)
    reference = _reference(pair)
    prompt = canary.make_prompt(WORDS // canary.BLOCKS, pair.decode.max_model_len)
    try:
        split = canary.answer_split(pairs.target_of(pair.prefill), pairs.target_of(pair.decode), prompt, TOKENS)
        alone = canary.answer_alone(pairs.target_of(reference), prompt, TOKENS)
    except canary.Failed as error:
        raise Unavailable(f"The check could not be made: {error}") from error
    same = alone == split
    record(actor, "pair.parity", f"pair {pair}", after={"same": same, "alone_on": reference.name})
    return Parity(same=same, prompt=prompt, split=split, alone=alone, alone_on=reference.name)


def _ready_pair(pair_id: int) -> Pair:
    rows = Pair.objects.select_related("prefill__deployment", "prefill__host", "decode__deployment", "decode__host")
    pair = rows.filter(pk=pair_id).first()
    if pair is None:
        raise NotFound("This pair does not exist.")
    if not pair.is_current or {pair.prefill.state, pair.decode.state} != {ServerState.READY}:
        raise Conflict("Both servers of a pair must be ready. Wait until they are, then check it.")
    return pair


def _reference(pair: Pair) -> Server:
    """Never the decode server: it would find what it fetched in its cache."""
    plain = Server.objects.with_names().filter(
        deployment=pair.decode.deployment, role=ServerRole.PLAIN, state=ServerState.READY
    )
    return plain.first() or pair.prefill
