"""`/v1/models`: the engines' own cards, merged. What no server answers for is shown from the table."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from routing.ask import hashed_key_of, may_use
from routing.backend import Backend
from routing.errors import BadAnswer, LegError, NotInTable
from routing.leg import Leg
from routing.reply import Request
from routing.table import Deployment, Table, Timeouts

CARD_TIMEOUTS = Timeouts(connect_s=1.0, first_byte_s=2.0)
Card = dict[str, Any]


async def model_cards(request: Request, table: Table, backends: Mapping[str, Backend]) -> bytes:
    """The answer's body. Raises `NotInTable`: 401 when the key opens nothing, 404 for one model that is not there."""
    hashed_key = hashed_key_of(request)
    mine = [deployment for deployment in table.deployments.values() if may_use(deployment, hashed_key)]
    if table.deployments and not mine:
        raise NotInTable(401, "Send an inference key as `Authorization: Bearer KEY`.", kind="AuthenticationError")
    found = await asyncio.gather(*(_cards_of(deployment, backends) for deployment in mine))
    cards = {str(card.get("id")): card for cards in found for card in cards}
    name = request.path.removeprefix("/v1/models").strip("/")
    if not name:
        return orjson.dumps({"object": "list", "data": list(cards.values())})
    if name not in cards:
        raise NotInTable(404, f"The model `{name}` is not served here.", kind="NotFoundError", param="model")
    return orjson.dumps(cards[name])


async def _cards_of(deployment: Deployment, backends: Mapping[str, Backend]) -> list[Card]:
    """From the first server that answers; decode and plain servers first, for it is their limits that clients meet."""
    order = {"decode": 0, "plain": 1, "prefill": 2}
    for server in sorted(deployment.servers, key=lambda server: (not server.accepting, order[server.role])):
        backend = backends.get(server.id)
        if backend is not None:
            cards = await fetch_cards(backend)
            if cards:
                return cards
    return [{"id": deployment.model, "object": "model", "created": 0, "owned_by": "vllm"}]


async def fetch_cards(backend: Backend) -> list[Card]:
    """Empty when the server does not answer: one that is down must not take the others' cards away."""
    try:
        return await ask_cards(backend)
    except LegError:
        return []


async def ask_cards(backend: Backend) -> list[Card]:
    """Raises `LegError`."""
    with Leg(backend, CARD_TIMEOUTS, is_aside=True) as leg:
        await leg.open("GET", "/v1/models", [], None)
        raw = await leg.read()
    try:
        return [card for card in orjson.loads(raw)["data"] if isinstance(card, dict)]
    except (ValueError, KeyError, TypeError) as error:
        raise BadAnswer(f"{backend.name} did not answer /v1/models with a list of models") from error
