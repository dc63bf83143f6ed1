"""Names for servers. A name stays when the server is moved, so it does not hold the role."""

from collections.abc import Collection

NAME_LIMIT = 63


def next_name(deployment: str, taken: Collection[str]) -> str:
    """The deployment's name and the first free number: `chat-1`, `chat-2`, …"""
    number = 1
    while True:
        suffix = f"-{number}"
        name = deployment[: NAME_LIMIT - len(suffix)].rstrip("-") + suffix
        if name not in taken:
            return name
        number += 1
