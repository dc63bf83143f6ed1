"""Servers are asked for their model cards: every name under which they answer."""

from typing import Any

import orjson

from routing.backend import Backend
from routing.cors import of_server
from routing.errors import BadAnswer, Headers, LegError
from routing.leg import Leg
from routing.table import Timeouts

CARD_TIMEOUTS = Timeouts(connect_s=1.0, first_byte_s=2.0)
Card = dict[str, Any]


async def fetch_cards(backend: Backend, asked: Headers) -> tuple[list[Card], Headers]:
    """Empty when the server does not answer: one that is down must not take the others' cards away."""
    try:
        return await _ask(backend, asked)
    except LegError:
        return [], []


async def ask_cards(backend: Backend) -> list[Card]:
    """Raises `LegError`."""
    cards, _ = await _ask(backend, [])
    return cards


async def _ask(backend: Backend, headers: Headers) -> tuple[list[Card], Headers]:
    with Leg(backend, CARD_TIMEOUTS, is_aside=True) as leg:
        await leg.open("GET", "/v1/models", headers, None)
        raw, said = await leg.read(), of_server(leg.head.headers)
    try:
        return [card for card in orjson.loads(raw)["data"] if isinstance(card, dict)], said
    except (ValueError, KeyError, TypeError) as error:
        raise BadAnswer(f"{backend.name} did not answer /v1/models with a list of models") from error
