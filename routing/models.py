"""`/v1/models`: the engines' own cards, merged. What no server answers for is shown from the table."""

import asyncio
from collections.abc import Mapping

import orjson

from routing.ask import hashed_key_of, may_use
from routing.backend import Backend
from routing.cards import Card, fetch_cards
from routing.cors import ORIGIN, Origins, for_own_answer
from routing.errors import Headers, NotInTable
from routing.names import Names
from routing.reply import Request
from routing.table import Deployment, Table

OTHERS_WITHIN_S = 0.5
"""How long a list of models waits for what all servers say, when one of each deployment has said it."""


async def model_cards(
    request: Request, table: Table, backends: Mapping[str, Backend], names: Names, origins: Origins
) -> tuple[bytes, Headers]:
    """The answer's body, and who may read it. Raises `NotInTable`: 401 when the key opens nothing, 404 for one model
    that is not there."""
    hashed_key = hashed_key_of(request)
    mine = sorted(
        (deployment for deployment in table.deployments.values() if may_use(deployment, hashed_key)),
        key=lambda deployment: deployment.name,
    )
    if table.deployments and not mine:
        raise NotInTable(401, "Send an inference key as `Authorization: Bearer KEY`.", kind="AuthenticationError")
    origin = request.get(ORIGIN)
    asked = [] if origin is None else [(ORIGIN, origin)]
    asking = asyncio.gather(*(_cards_of(deployment, backends, asked) for deployment in mine))
    if any(len(deployment.servers) > 1 for deployment in mine):
        await names.look(OTHERS_WITHIN_S)
    found = await asking
    told = [(one, [*shown, *names.cards_of(one)]) for one, (shown, _) in zip(mine, found, strict=True)]
    cards = _by_name(told)
    headers = _agreed([said for _, said in found if said is not None], request, origins) if asked else []
    name = request.path.removeprefix("/v1/models").strip("/")
    if not name:
        return orjson.dumps({"object": "list", "data": list(cards.values())}), headers
    if name not in cards:
        raise NotInTable(404, f"The model `{name}` is not served here.", kind="NotFoundError", param="model")
    return orjson.dumps(cards[name]), headers


def _by_name(told: list[tuple[Deployment, list[Card]]]) -> dict[str, Card]:
    """Of each name the card of the deployment that a request for it goes to: the one called so, else the first."""
    found: dict[str, Card] = {}
    own: set[str] = set()
    for deployment, cards in told:
        for card in cards:
            name = str(card.get("id"))
            if name not in found or (name == deployment.model and name not in own):
                found[name] = card
                own |= {name} & {deployment.model}
    return found


def _agreed(said: list[Headers], request: Request, origins: Origins) -> Headers:
    """What all servers say of who may read their cards; nobody may where they differ."""
    if not said:
        return for_own_answer(request, origins)
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
