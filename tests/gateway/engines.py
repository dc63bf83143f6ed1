"""Simulated engines as rows, so that a running web process routes to them."""

from typing import Any

from console.fleet.models import Deployment, Pair, Server
from console.fleet.states import PairState, ServerRole, ServerState
from tests.factories import make_deployment, make_host, make_server
from tests.simulator.harness import NAME, SimulatedServer


def deploy(**fields: Any) -> Deployment:
    """A deployment of the model that the harness serves, open to all."""
    return make_deployment("chat", **{"served_model_name": NAME, "require_key": False, **fields})


def register(engine: SimulatedServer, deployment: Deployment, name: str, **fields: Any) -> Server:
    """The row of a server that runs already and is ready."""
    host = make_host(address="127.0.0.1")
    role = ServerRole(engine.role)
    return make_server(role, ServerState.READY, deployment, host, name=name, api_port=engine.port, **fields)


def verify(prefill: Server, decode: Server) -> Pair:
    return Pair.objects.create(
        prefill=prefill,
        decode=decode,
        prefill_generation=prefill.generation,
        decode_generation=decode.generation,
        state=PairState.VERIFIED,
    )


def completion(prompt: str = "hello", tokens: int = 20, **fields: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True, **fields}
