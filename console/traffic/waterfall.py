"""Where the time of one request went, part by part. Pure: a record in, bars out."""

from dataclasses import dataclass

from console.traffic.models import RequestRecord


@dataclass(frozen=True)
class Part:
    """One bar. `left` and `width` are shares of the whole, 0 to 1."""

    name: str
    kind: str
    began_ms: float
    took_ms: float
    left: float
    width: float


def parts(record: RequestRecord) -> list[Part]:
    """One after the other without holes, so that they add up to the whole."""
    whole, found, before = whole_ms(record), [], 0.0
    for name, kind, at in _marks(record):
        if at is None or at <= before:
            continue
        found.append(Part(name, kind, before, at - before, before / whole, (at - before) / whole))
        before = at
    return found


def _marks(record: RequestRecord) -> list[tuple[str, str, float | None]]:
    """Each part with the moment it ended at, in the order of a request."""
    split = record.prefill_sent_ms is not None
    return [
        ("Choosing servers", "choice", record.chosen_ms),
        ("Sending it on", "choice", record.prefill_sent_ms if split else record.decode_sent_ms),
        ("Prefill", "prefill", record.prefill_answered_ms),
        ("Hand-off to the first token" if split else "First token", "handoff", record.first_token_ms),
        ("Stream", "stream", record.last_token_ms),
        ("Closing" if record.first_token_ms else "Answer", "rest", record.finished_ms),
    ]


def whole_ms(record: RequestRecord) -> float:
    marks = (at for _, _, at in _marks(record) if at is not None)
    return max(marks, default=0.0)


def tpot_ms(record: RequestRecord) -> float | None:
    """(last chunk - first chunk) / (answer tokens - 1); None below two tokens."""
    tokens = record.completion_tokens or 0
    if record.first_token_ms is None or record.last_token_ms is None or tokens < 2:
        return None
    return (record.last_token_ms - record.first_token_ms) / (tokens - 1)
