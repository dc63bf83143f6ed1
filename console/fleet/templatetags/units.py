"""Numbers in words people read: durations, sizes, shares. None is a dash."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django import template
from django.utils import timezone

from console.words import in_words

register = template.Library()
NOTHING = "–"
Number = float | str | None
"""What templates pass: a missing value reaches a filter as an empty string."""


@register.filter
def milliseconds(value: Number) -> str:
    """`0.4 ms`, `38 ms`, `1.24 s`."""
    if isinstance(value, str) or value is None:
        return NOTHING
    if value < 10:
        return f"{value:.1f} ms"
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.2f} s" if value < 10_000 else f"{value / 1000:.1f} s"


@register.filter
def seconds(value: Number | timedelta) -> str:
    """`0.8 s`, `12 s`, `4 min 10 s`, `3 h 5 min`, `2 days`."""
    if isinstance(value, str) or value is None:
        return NOTHING
    total_s = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if total_s < 10:
        return f"{max(total_s, 0):.1f} s"
    if total_s < 120:
        return f"{total_s:.0f} s"
    if total_s < 7200:
        return f"{total_s // 60:.0f} min {total_s % 60:.0f} s"
    if total_s < 48 * 3600:
        return f"{total_s // 3600:.0f} h {total_s % 3600 // 60:.0f} min"
    return f"{total_s // 86400:.0f} days"


@register.filter
def age(moment: datetime | None) -> str:
    """How long ago, by the console's clock."""
    return "never" if moment is None else seconds(timezone.now() - moment)


@register.filter
def unix_age(moment: float | None) -> str:
    return NOTHING if moment is None else seconds(timezone.now().timestamp() - moment)


@register.filter
def clock(moment: datetime | float | None) -> str:
    """`14:03:27`, with the date when it was not today. UTC, like every time on the pages."""
    if moment is None:
        return NOTHING
    when = moment if isinstance(moment, datetime) else datetime.fromtimestamp(moment, tz=UTC)
    form = "%H:%M:%S" if when.date() == timezone.now().date() else "%Y-%m-%d %H:%M:%S"
    return when.strftime(form)


@register.filter
def percent(share: Number) -> str:
    return NOTHING if isinstance(share, str) or share is None else f"{share * 100:.0f} %"


@register.filter
def percent_css(share: float | None) -> str:
    """For a style attribute: no locale, no space."""
    return f"{min(max(share or 0, 0), 1) * 100:.1f}%"


@register.filter
def gib(mib: Number) -> str:
    return NOTHING if isinstance(mib, str) or mib is None else f"{mib / 1024:.1f} GiB"


@register.filter
def byte_size(count: float | None) -> str:
    if count is None:
        return NOTHING
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


@register.filter
def whole(value: Number) -> str:
    """With a narrow space between thousands."""
    return NOTHING if isinstance(value, str) or value is None else f"{value:,.0f}".replace(",", "\u202f")


@register.filter
def or_dash(value: Any) -> Any:
    return NOTHING if value is None or value == "" else value


@register.filter
def told(value: Any) -> str:
    """Of a setting or a change, whatever kind it is of."""
    return in_words(value) or NOTHING


@register.filter
def gpus(indexes: list[int]) -> str:
    if not indexes:
        return "no GPU"
    return ("GPU " if len(indexes) == 1 else "GPUs ") + ", ".join(str(index) for index in indexes)


@register.filter
def signed_milliseconds(value: float) -> str:
    """`+38 ms`, `−1.24 s`: against the moment that a request was received."""
    return ("−" if value < 0 else "+") + milliseconds(abs(value))


@register.filter
def get(mapping: dict[str, Any], key: str) -> Any:
    return mapping.get(key, "")
