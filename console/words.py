"""Values of settings and of the audit trail as a person would write them."""

import re
import shlex
from datetime import datetime
from typing import Any

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*")


def in_words(value: Any) -> str:
    """Empty for what is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={in_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return _list_in_words(list(value))
    text = str(value)
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}" if _MOMENT.fullmatch(text) else text


def _list_in_words(values: list[Any]) -> str:
    """Arguments of a command as one types them."""
    words = [in_words(one) for one in values]
    return shlex.join(words) if any(word.startswith("-") for word in words) else ", ".join(words)
