"""The API, put together from its resources."""

from typing import Any

from ninja import NinjaAPI, Swagger
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation

from console.api import (
    audit,
    deployments,
    document,
    edge,
    errors,
    hosts,
    join_tokens,
    keys,
    launches,
    moves,
    pairs,
    requests,
    servers,
    tokens,
)
from console.api.identity import VIEWER


class SwitchyardAPI(NinjaAPI):
    """Names operations by resource and deed, and completes their description."""

    def get_openapi_operation_id(self, operation: Operation) -> str:
        return operation.view_func.__name__

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        return document.complete(super().get_openapi_schema(path_prefix=path_prefix, path_params=path_params))


api = SwitchyardAPI(
    title="Switchyard",
    version="1",
    description=document.DESCRIPTION,
    urls_namespace="api",
    auth=VIEWER,
    docs=Swagger({"persistAuthorization": False, "validatorUrl": "none"}),
    docs_decorator=edge.documented,
)
errors.handle(api)
api.add_decorator(edge.guarded, mode="view")
api.add_router("/hosts", hosts.router)
api.add_router("/deployments", deployments.router)
api.add_router("/deployments", keys.router)
api.add_router("/servers", servers.router)
api.add_router("/servers", launches.router)
api.add_router("/moves", moves.router)
api.add_router("/pairs", pairs.router)
api.add_router("/requests", requests.router)
api.add_router("/tokens", tokens.router)
api.add_router("/join-tokens", join_tokens.router)
api.add_router("/audit", audit.router)
