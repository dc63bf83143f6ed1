"""What exists: hosts with their GPUs, deployments, servers, pairs and moves."""

from console.fleet.models import limits
from console.fleet.models.deployments import Deployment, Engine, KvLoadFailurePolicy, Revision, WhenNoPair
from console.fleet.models.hosts import Gpu, Host
from console.fleet.models.moves import Move
from console.fleet.models.names import name_validator
from console.fleet.models.pairs import Pair, attach_pairs
from console.fleet.models.servers import Server

__all__ = [
    "Deployment",
    "Engine",
    "Gpu",
    "Host",
    "KvLoadFailurePolicy",
    "Move",
    "Pair",
    "Revision",
    "Server",
    "WhenNoPair",
    "attach_pairs",
    "limits",
    "name_validator",
]
