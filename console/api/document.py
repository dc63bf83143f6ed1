"""The API's description of itself: what OpenAPI says beyond the operations."""

from typing import Any

from ninja.openapi.schema import OpenAPISchema
from pydantic.json_schema import models_json_schema

from console.api.changes import REHEARSED
from console.api.errors import MEANINGS, ErrorOut

DESCRIPTION = """\
Everything the pages do, for programs. Send `Authorization: Bearer <API token>`; a token acts as its owner, with at most
the role of its scope. A browser session works too; its changes need the CSRF token in `X-CSRFToken`.

Every change takes `dry_run`, as a parameter or in its body, and the header `Idempotency-Key`. What was only rehearsed
is answered with `"dry_run": true` and the header `Dry-Run: true`.

Lists are `{"items": [...], "count": n}` with `limit` and `offset`. Every error is
`{"error": {"code", "message", "field", "details"}}`, the last two where they apply.
"""

SECURITY_SCHEMES: dict[str, Any] = {
    "token": {"type": "http", "scheme": "bearer", "description": "An API token, `syt-…`"},
    "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
}


def complete(schema: OpenAPISchema) -> OpenAPISchema:
    """Adds to each operation the errors that any of them may answer, and who may call."""
    components = schema["components"]
    components["responses"] = {str(status): _response(meaning) for status, meaning in MEANINGS.items()}
    components["securitySchemes"] = SECURITY_SCHEMES
    components["schemas"].update(_error_schemas())
    schema["security"] = [{name: []} for name in SECURITY_SCHEMES]
    for methods in schema["paths"].values():
        for operation in methods.values():
            for status in MEANINGS:
                operation["responses"][status] = {"$ref": f"#/components/responses/{status}"}
            for parameter in operation["parameters"]:
                parameter["schema"] = _without_null(parameter["schema"])
            if any(parameter["name"] == "dry_run" for parameter in operation["parameters"]):
                _add_rehearsal(operation["responses"])
    return schema


def _add_rehearsal(responses: dict[Any, dict[str, Any]]) -> None:
    for status, response in responses.items():
        if 200 <= int(status) < 300:
            response["headers"] = {REHEARSED: {"schema": {"type": "string"}, "description": "`true` after `dry_run`"}}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that may be left out is described as one that may be null, which an address cannot say."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **kinds[0]}


def _response(meaning: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}}
    return {"description": meaning, "content": content}


def _error_schemas() -> dict[str, Any]:
    template = "#/components/schemas/{model}"
    _, definitions = models_json_schema([(ErrorOut, "validation")], ref_template=template)
    found: dict[str, Any] = definitions["$defs"]
    return found
