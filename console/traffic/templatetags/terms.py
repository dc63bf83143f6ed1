"""`{% term "ttft" %}`: a measure's name that shows its definition on hover and on focus."""

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

TERMS: dict[str, tuple[str, str]] = {
    "ttft": (
        "TTFT",
        "Time to first token: from the request read in full to the first chunk with text, reasoning or a tool call. "
        "It holds our choice, the prefill, the hand-off and the first decode step.",
    ),
    "ttft_p50": ("TTFT p50", "Half of the requests in the window on screen got their first token within this time."),
    "ttft_p99": ("TTFT p99", "99 of 100 requests in the window on screen got their first token within this time."),
    "gap": (
        "Gap between chunks",
        "Time between two consecutive chunks of one stream. A chunk can hold several tokens and counts as one gap. "
        "Other tools call this ITL, and some of them average it per request; here all gaps are pooled.",
    ),
    "gap_p50": ("Gap p50", "Half of all gaps between chunks in the window on screen were at most this long."),
    "gap_p99": (
        "Gap p99",
        "99 of 100 gaps between chunks in the window were at most this long. It hides a stall that hits fewer "
        "than 1 in 100 gaps: look at the worst gap beside it.",
    ),
    "worst_gap": ("Worst gap", "The longest gap between two chunks of any stream in the window on screen."),
    "stalled": (
        "Stalled time",
        "The sum, over all gaps above the gap limit (200 ms when the deployment sets none), of what exceeds it.",
    ),
    "rate": ("Requests/min", "Finished requests per minute over the window on screen, whatever their outcome."),
    "failed": (
        "Failed",
        "Requests that we or a server broke, in the window. A request that the client left, or that was refused for "
        "its own mistake (4xx), is counted apart.",
    ),
    "tpot": (
        "TPOT",
        "Time per output token: from the first to the last chunk, divided by the answer's tokens less one.",
    ),
    "e2e": ("E2E", "From the request read in full to the last byte of the answer."),
    "handoff": (
        "Hand-off",
        "From the prefill server's answer to the first token of the decode server: the KV transfer and its wait. "
        "This, not the transfer alone, is the price of splitting.",
    ),
    "kv_use": ("KV use", "Share of the server's KV cache that running requests occupy."),
    "prefill_ms": ("Prefill", "From the request sent to the prefill server to its answer."),
    "long_prompt": ("Long prompt", "A prompt long enough to hold up a server's running streams while it is computed."),
}


@register.simple_tag
def term(key: str, side: str = "") -> SafeString:
    """`side="end"` opens the definition to the left, for the right edge of the page."""
    name, meaning = TERMS[key]
    return format_html(
        '<button type="button" class="term {}" aria-describedby="term-{}">{}'
        '<span class="tip" role="tooltip" id="term-{}">{}</span></button>',
        "term-end" if side == "end" else "",
        key,
        name,
        key,
        meaning,
    )
