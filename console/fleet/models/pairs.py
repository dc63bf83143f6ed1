"""Pairs of a prefill and a decode server, and reading those of many servers at once."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from django.db import models

from console.fleet.states import PairState, ServerRole, ServerState

if TYPE_CHECKING:
    from console.fleet.models.servers import Server


class PairQuerySet(models.QuerySet["Pair"]):
    def current(self) -> "PairQuerySet":
        """`Pair.is_current`, for the database."""
        return self.filter(
            prefill_generation=models.F("prefill__generation"), decode_generation=models.F("decode__generation")
        )

    def in_use(self) -> "PairQuerySet":
        """Those through which requests are split now: verified, and both servers are ready."""
        ready = {"prefill__state": ServerState.READY, "decode__state": ServerState.READY}
        return self.current().filter(state=PairState.VERIFIED, **ready)

    def splitting(self, avoided: Collection[int]) -> "PairQuerySet":
        """Those in use, and those that routers go on using while a host is silent; of these none with a server that
        is `avoided`: nobody hears of it, and it does not answer."""
        return self.current().filter(
            _answers("prefill", avoided), _answers("decode", avoided), state=PairState.VERIFIED
        )

    def doubtful(self) -> "PairQuerySet":
        """Those that get no traffic."""
        return self.exclude(
            state=PairState.VERIFIED,
            prefill_generation=models.F("prefill__generation"),
            decode_generation=models.F("decode__generation"),
        )


class Pair(models.Model):
    """A prefill and a decode server, and what the canary through them showed. Only verified pairs get traffic.

    A row speaks of one start of each server; after a restart it is stale and counts as unverified.
    """

    prefill = models.ForeignKey("fleet.Server", on_delete=models.CASCADE, related_name="pairs_as_prefill")
    decode = models.ForeignKey("fleet.Server", on_delete=models.CASCADE, related_name="pairs_as_decode")
    prefill_generation = models.PositiveIntegerField()
    decode_generation = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=PairState.choices, default=PairState.UNVERIFIED)
    reason = models.CharField(max_length=400, blank=True)
    checked_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    transfer_ms = models.FloatField(null=True)
    """Mean transfer time of the canary by the decode server's own histogram."""
    transfer_bytes = models.BigIntegerField(null=True)
    canary_tokens = models.PositiveIntegerField(null=True)

    objects = PairQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["prefill", "decode"], name="one_row_per_pair")]

    def __str__(self) -> str:
        return f"{self.prefill.name} → {self.decode.name}"

    @property
    def megabytes_per_s(self) -> float | None:
        """Of the canary's transfer; None when its engine does not count transfers."""
        if not self.transfer_ms or not self.transfer_bytes:
            return None
        return round(self.transfer_bytes / self.transfer_ms / 1000, 1)

    def transfer_ms_for(self, prompt_tokens: int) -> float | None:
        """About how long the KV of such a prompt takes, in proportion to the canary's; None as above.

        Too long for an engine whose transfers have a fixed cost: a canary is short.
        """
        if not self.transfer_ms or not self.canary_tokens:
            return None
        return round(self.transfer_ms * prompt_tokens / self.canary_tokens, 1)

    @property
    def is_current(self) -> bool:
        return self.prefill_generation == self.prefill.generation and self.decode_generation == self.decode.generation

    @property
    def is_in_use(self) -> bool:
        """Requests are split through it now, as far as the database tells: as `PairQuerySet.splitting`, before routers
        have found out that a server whose host is silent does not answer."""
        is_verified = self.is_current and self.state == PairState.VERIFIED
        return is_verified and all(map(_is_routed, (self.prefill, self.decode)))


def _is_routed(server: "Server") -> bool:
    return server.state == ServerState.READY or (server.is_silent_but_used and not server.is_adopted)


def _answers(side: str, avoided: Collection[int]) -> models.Q:
    """Ready; or silent but used, of a host, and not avoided."""
    silent = {"state": ServerState.UNREACHABLE, "state_before_unreachable": ServerState.READY, "host__isnull": False}
    is_silent = models.Q(**{f"{side}__{field}": value for field, value in silent.items()})
    is_ready = models.Q(**{f"{side}__state": ServerState.READY})
    return is_ready | (is_silent & ~models.Q(**{f"{side}__in": list(avoided)}))


def attach_pairs(servers: "Iterable[Server]", pairs: PairQuerySet) -> None:
    """All servers of one or more deployments; what `pairs` holds of theirs then costs no query."""
    known = {server.pk: server for server in servers}
    for server in known.values():
        server.attached_pairs = []
    deployments = {server.deployment_id for server in known.values()}
    for pair in pairs.filter(prefill__deployment__in=deployments):
        if pair.prefill_id in known and pair.decode_id in known:
            pair.prefill, pair.decode = known[pair.prefill_id], known[pair.decode_id]
            _attach(pair, pair.prefill)
            _attach(pair, pair.decode)


def _attach(pair: Pair, server: "Server") -> None:
    side = pair.prefill_id if server.role == ServerRole.PREFILL else pair.decode_id
    if side == server.pk and server.attached_pairs is not None:
        server.attached_pairs.append(pair)
