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


class Invalid(Refused):
    """A body that does not fit the API's model, in the words of vLLM's validation."""

    def __init__(self, where: str, what: str, kind: str, value: object) -> None:
        shown = f"<dict of {len(value)} items>" if isinstance(value, dict) else str(value)
        error = {"type": kind, "loc": f"body.{where}" if where else "body", "msg": what, "input": shown}
        super().__init__(f"1 validation error:\n  {error}", "Bad Request")
        self.param = error["loc"]


def missing(where: str, body: dict[str, Any]) -> Invalid:
    return Invalid(where, "Field required", "missing", body)
