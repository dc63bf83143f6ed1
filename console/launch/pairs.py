"""Pairs of a prefill and a decode server: which there are, which may be, and what trying them showed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from console.fleet.models import Pair, Server
from console.fleet.signals import pair_changed
from console.fleet.states import PairState, ServerRole, ServerState
from console.launch import canary, readiness

MUST_AGREE: Mapping[str, str] = {
    "--dtype": "data type",
    "--kv-cache-dtype": "KV cache data type",
    "--block-size": "block size",
    "--max-model-len": "context length",
    "--quantization": "quantization",
    "--speculative-config": "speculative decoding",
    "--pipeline-parallel-size": "pipeline parallelism",
}
SHORT_FLAGS = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-q": "--quantization"}


@dataclass(frozen=True)
class Side:
    """What must fit between the two servers of a pair, read from what each was started with."""

    model: str
    options: Mapping[str, str] | None
    """None for an adopted server, which does not tell: then the canary alone proves that KV fits."""
    connector: str
    version: str = ""

    @property
    def tensor_parallel(self) -> int:
        given = (self.options or {}).get("--tensor-parallel-size", "1")
        return int(given) if given.isdecimal() else 1


def why_illegal(prefill: Side, decode: Side) -> str | None:
    """A sentence for the cards, or None when the two can hand over KV. Pure."""
    if prefill.model != decode.model:
        return f"their models are named differently ({prefill.model} and {decode.model}), so KV does not fit."
    if prefill.connector != decode.connector:
        return f"they use different KV connectors ({prefill.connector} and {decode.connector})."
    if prefill.version and decode.version and prefill.version != decode.version:
        return f"they run different engine versions ({prefill.version} and {decode.version})."
    if prefill.options is None or decode.options is None:
        return None
    for option, words in MUST_AGREE.items():
        one, other = prefill.options.get(option, "default"), decode.options.get(option, "default")
        if one != other:
            return f"their {words} differs ({one} and {other}). Start both with the same."
    if decode.tensor_parallel < prefill.tensor_parallel or decode.tensor_parallel % prefill.tensor_parallel:
        return (
            f"tensor parallelism {prefill.tensor_parallel} on the prefill server does not go into "
            f"{decode.tensor_parallel} on the decode server. Give the decode server a multiple of it."
        )
    return None


def options_of(argv: Iterable[str]) -> dict[str, str]:
    """Flags with their values from an argument list; a flag without a value maps to an empty text. Pure."""
    options: dict[str, str] = {}
    flag = ""
    for word in argv:
        if word.startswith("-") and not word.lstrip("-").replace(".", "", 1).isdigit():
            flag, equals, value = word.partition("=")
            flag = SHORT_FLAGS.get(flag, flag.replace("_", "-"))
            options[flag] = value if equals else ""
        elif flag:
            options[flag] = f"{options[flag]} {word}".strip()
    return options


def side_of(server: Server) -> Side:
    options = None if server.is_adopted else options_of(server.launch_spec.get("argv", []))
    return Side(
        model=server.told.get("model") or server.deployment.model,
        options=options,
        connector=server.deployment.connector,
        version=server.told.get("version") or server.observed.get("version", ""),
    )


def ensure(prefill: Server, decode: Server) -> Pair:
    """The row of the two, about their present starts; what an earlier start showed is forgotten."""
    generations = {"prefill_generation": prefill.generation, "decode_generation": decode.generation}
    pair, created = Pair.objects.get_or_create(prefill=prefill, decode=decode, defaults=generations)
    if not created and (pair.prefill_generation, pair.decode_generation) != (prefill.generation, decode.generation):
        fresh = {"state": PairState.UNVERIFIED, "reason": "", "attempts": 0, "checked_at": None, **generations}
        Pair.objects.filter(pk=pair.pk).update(**fresh)
        pair.refresh_from_db()
    return pair


def due() -> list[Pair]:
    """Pairs of ready servers that are not verified and whose next try has come."""
    _complete()
    now = timezone.now()
    return [pair for pair in _current().exclude(state=PairState.VERIFIED) if _is_due(pair, now)]


def try_pair(prefill: Server, decode: Server) -> Pair:
    """Sends a canary through the two if that is due, and records what it showed."""
    pair = ensure(prefill, decode)
    if not _is_due(pair, timezone.now()):
        return pair
    problem, result = why_illegal(side_of(prefill), side_of(decode)), None
    if problem is None:
        try:
            result = canary.try_pair(target_of(prefill), target_of(decode), decode.max_model_len)
        except canary.Failed as error:
            problem = str(error)
    _record(pair, prefill, decode, problem, result)
    return pair


def peers(server: Server) -> list[Server]:
    """The ready servers of the opposite role in its deployment."""
    opposite = {ServerRole.PREFILL: ServerRole.DECODE, ServerRole.DECODE: ServerRole.PREFILL}.get(
        ServerRole(server.role)
    )
    if opposite is None:
        return []
    ready = Server.objects.with_names().filter(deployment=server.deployment, state=ServerState.READY, role=opposite)
    return list(ready)


def try_with_peers(server: Server) -> None:
    for peer in peers(server):
        if server.role == ServerRole.PREFILL:
            try_pair(server, peer)
        else:
            try_pair(peer, server)


def target_of(server: Server) -> canary.Target:
    deployment = server.deployment
    return canary.Target(server.name, server.url, deployment.served_model_name, server.engine_key)


def _current() -> QuerySet[Pair]:
    """Rows about the present starts of two ready servers."""
    return Pair.objects.filter(
        prefill__state=ServerState.READY,
        decode__state=ServerState.READY,
        prefill_generation=F("prefill__generation"),
        decode_generation=F("decode__generation"),
    ).select_related("prefill", "decode")


def _complete() -> None:
    """Makes the rows that are missing or about earlier starts. Counting first keeps a tick cheap with many pairs."""
    ready = Server.objects.filter(state=ServerState.READY).values_list("deployment_id", "role")
    counts = Counter(ready)
    expected = sum(
        counts[deployment_id, ServerRole.PREFILL] * counts[deployment_id, ServerRole.DECODE]
        for deployment_id in {deployment_id for deployment_id, _ in counts}
    )
    if expected == _current().count():
        return
    for prefill in Server.objects.with_names().filter(state=ServerState.READY, role=ServerRole.PREFILL):
        for decode in peers(prefill):
            ensure(prefill, decode)


def _is_due(pair: Pair, now: datetime) -> bool:
    if pair.state == PairState.VERIFIED:
        return False
    if pair.state == PairState.UNVERIFIED or pair.checked_at is None:
        return True
    if pair.checked_at > now:  # somebody set the clock back
        return True
    return pair.checked_at + timedelta(seconds=readiness.retry_in_s(pair.attempts)) <= now


def _record(pair: Pair, prefill: Server, decode: Server, problem: str | None, result: canary.PairResult | None) -> None:
    """Only if both servers are still the starts that were tried."""
    fields = {
        "state": PairState.FAILED if problem else PairState.VERIFIED,
        "reason": (problem or "")[:400],
        "checked_at": timezone.now(),
        "transfer_ms": result.transfer.ms if result else None,
        "transfer_bytes": result.transfer.kv_bytes if result else None,
        "canary_tokens": result.tokens if result else None,
    }
    generations = {"prefill_generation": prefill.generation, "decode_generation": decode.generation}
    with transaction.atomic():
        attempts = F("attempts") + 1 if problem else 0
        if not Pair.objects.filter(pk=pair.pk, **generations).update(attempts=attempts, **fields):
            return
        pair.refresh_from_db()
        pair_changed.send(sender=Pair, pair=pair)
