"""Error answers, in the shapes and words of vLLM."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A request that gets an error answer. vLLM adds the parameter, and its value where it knows it, to the message."""

    def __init__(
        self,
        message: str,
        kind: str = "BadRequestError",
        param: str | None = None,
        code: int = 400,
        value: object = None,
    ) -> None:
        shown = f", value={value}" if value is not None else ""
        super().__init__(f"{message} (parameter={param}{shown})" if param and code == 400 else message)
        self.kind = kind
        self.param = param
        self.code = code

    def as_json(self) -> dict[str, Any]:
        return error_json(str(self), self.kind, self.param, self.code)


def error_json(message: str, kind: str, param: str | None, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


Fault = dict[str, str]
"""One thing that is wrong with a body, in the words of vLLM's validation."""
MOST_FAULTS = 10
MOST_CHARACTERS = 200


def fault(where: str, what: str, kind: str, value: object) -> Fault:
    return {"type": kind, "loc": f"body.{where}" if where else "body", "msg": what, "input": _shown(value)}


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    words = str(value)
    return words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}...[truncated]"


class Invalid(Refused):
    """A body that does not fit the API's model. Names the first faults."""

    def __init__(self, *faults: Fault) -> None:
        errors = "error" if len(faults) == 1 else "errors"
        lines = [f"{len(faults)} validation {errors}:", *map("  {}".format, faults[:MOST_FAULTS])]
        if len(faults) > MOST_FAULTS:
            lines.append(f"  ...and {len(faults) - MOST_FAULTS} more {errors}")
        super().__init__("\n".join(lines), "Bad Request")
        self.param = faults[0]["loc"]


def invalid(where: str, what: str, kind: str, value: object) -> Invalid:
    return Invalid(fault(where, what, kind, value))


def missing(where: str, body: dict[str, Any]) -> Invalid:
    return invalid(where, "Field required", "missing", body)
