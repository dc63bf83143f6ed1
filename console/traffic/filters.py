"""The filters of the list of requests, read from the address so that a filtered list can be passed on."""

from datetime import timedelta
from urllib.parse import urlencode

from django.http.request import QueryDict
from django.utils import timezone

from console.traffic.queries import Filters

ROUTES = ("split", "short prompt", "plain", "fallback", "direct")
OUTCOMES = ("ok", "failed", "cancelled", "refused")
SINCE = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "1d": timedelta(days=1)}
SINCE_TEXT = (("", "all kept"), ("15m", "15 minutes"), ("1h", "1 hour"), ("1d", "1 day"))
NAMES = ("deployment", "server", "route", "outcome", "since", "min_ttft_ms", "text")
LABELS = {"route": "Route", "outcome": "Outcome", "since": "Last", "min_ttft_ms": "TTFT from, ms"}
"""Of the fields that can be misunderstood, as the page calls them."""
LONGEST_TEXT = 200


class RequestFilter:
    """What cannot be understood is left out, and `problems` says so by field."""

    routes, outcomes, since_choices = ROUTES, OUTCOMES, SINCE_TEXT

    def __init__(self, given: QueryDict) -> None:
        self.values = {name: given.get(name, "").strip()[:LONGEST_TEXT].replace("\0", "") for name in NAMES}
        self.problems: dict[str, str] = {}
        self.filters = Filters(
            deployment=self.values["deployment"],
            server=self.values["server"],
            route=self._choice("route", ROUTES),
            outcome=self._choice("outcome", OUTCOMES),
            min_ttft_ms=self._number("min_ttft_ms"),
            text=self.values["text"],
            since=timezone.now() - SINCE[since] if (since := self._choice("since", tuple(SINCE))) else None,
        )

    @property
    def is_set(self) -> bool:
        return any(self.values.values())

    @property
    def told_problems(self) -> list[tuple[str, str]]:
        """Each with the label of its field."""
        return [(LABELS[name], problem) for name, problem in self.problems.items()]

    @property
    def query(self) -> str:
        """To put before `page=`."""
        kept = {name: value for name, value in self.values.items() if value}
        return f"{urlencode(kept)}&" if kept else ""

    def _choice(self, name: str, known: tuple[str, ...]) -> str:
        text = self.values[name]
        if text and text not in known:
            self.problems[name] = f"There is no “{text}” here. Left out."
            return ""
        return text

    def _number(self, name: str) -> float | None:
        text = self.values[name]
        try:
            value = float(text) if text else None
        except ValueError:
            value = float("nan")
        if value is not None and not 0 <= value < float("inf"):
            self.problems[name] = "Give milliseconds as a number. Left out."
            return None
        return value
