"""Whether KV really comes from prefill servers, seen on live traffic. Pure.

A decode server that computes every prompt itself gives right answers, so nothing but its counters shows that the split
is fictional.
"""

from typing import TypedDict

from console.launch.contracts import EngineSample

NOTICED_AFTER = 5
"""Split requests without a single token of KV from outside."""


class KvWatch(TypedDict, total=False):
    """Counts since the last moment at which KV was seen to arrive."""

    since: float
    external: float
    local: float
    not_transferred: bool
    text: str


class SplitTraffic(TypedDict):
    """Split requests that this decode server answered since `KvWatch.since`."""

    requests: int
    prompt_tokens: int


def fresh(sample: EngineSample, now: float) -> KvWatch:
    return KvWatch(since=now, external=sample["external_kv_tokens"], local=sample["local_compute_tokens"])


def kv_arrived(watch: KvWatch, sample: EngineSample) -> bool:
    """Also when the counters began anew."""
    if not watch:
        return True
    return sample["external_kv_tokens"] != watch["external"] or sample["local_compute_tokens"] < watch["local"]


def judge(watch: KvWatch, sample: EngineSample, traffic: SplitTraffic) -> KvWatch:
    """For a watch in whose time no KV arrived. Prompts found in its own cache are no proof, computed ones are."""
    computed = sample["local_compute_tokens"] - watch["local"]
    if traffic["requests"] < NOTICED_AFTER or computed < traffic["prompt_tokens"] / 2:
        return watch
    text = (
        f"KV not transferred: it computed the prompts of the last {traffic['requests']} split requests itself. "
        "Look for NIXL errors in its log, then restart it or its prefill servers."
    )
    return {**watch, "not_transferred": True, "text": text}
