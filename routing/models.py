"""`/v1/models`: the engines' own cards, merged. What no server answers for is shown from the table."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from routing.ask import hashed_key_of, may_use
from routing.backend import Backend
from routing.cors import ORIGIN, for_own_answer, of_server
from routing.errors import BadAnswer, Headers, LegError, NotInTable
from routing.leg import Leg
from routing.reply import Request
from routing.table import Deployment, Table, Timeouts

CARD_TIMEOUTS = Timeouts(connect_s=1.0, first_byte_s=2.0)
Card = dict[str, Any]


async def model_cards(request: Request, table: Table, backends: Mapping[str, Backend]) -> tuple[bytes, Headers]:
    """The answer's body, and who may read it. Raises `NotInTable`: 401 when the key opens nothing, 404 for one model
    that is not there."""
    hashed_key = hashed_key_of(request)
    mine = [deployment for deployment in table.deployments.values() if may_use(deployment, hashed_key)]
    if table.deployments and not mine:
        raise NotInTable(401, "Send an inference key as `Authorization: Bearer KEY`.", kind="AuthenticationError")
    origin = request.get(ORIGIN)
    asked = [] if origin is None else [(ORIGIN, origin)]
    found = await asyncio.gather(*(_cards_of(deployment, backends, asked) for deployment in mine))
    cards = {str(card.get("id")): card for cards, _ in found for card in cards}
    headers = _agreed([said for _, said in found if said is not None], request) if asked else []
    name = request.path.removeprefix("/v1/models").strip("/")
    if not name:
        return orjson.dumps({"object": "list", "data": list(cards.values())}), headers
    if name not in cards:
        raise NotInTable(404, f"The model `{name}` is not served here.", kind="NotFoundError", param="model")
    return orjson.dumps(cards[name]), headers


def _agreed(said: list[Headers], request: Request) -> Headers:
    """What all servers say of who may read their cards; nobody may where they differ."""
    if not said:
        return for_own_answer(request)
    return said[0] if all(other == said[0] for other in said) else []


async def _cards_of(
    deployment: Deployment, backends: Mapping[str, Backend], asked: Headers
) -> tuple[list[Card], Headers | None]:
    """From the first server that answers; decode and plain servers first, for it is their limits that clients meet.
    With what it says of who may read them; None when they are no server's."""
    order = {"decode": 0, "plain": 1, "prefill": 2}
    for server in sorted(deployment.servers, key=lambda server: (not server.accepting, order[server.role])):
        backend = backends.get(server.id)
        if backend is not None:
            cards, said = await fetch_cards(backend, asked)
            if cards:
                return cards, said
    return [{"id": deployment.model, "object": "model", "created": 0, "owned_by": "vllm"}], None


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
