"""Calling the API in tests the way programs do: JSON in, JSON out, a token in the header."""

import json
from dataclasses import dataclass
from typing import Any

from django.test import Client

from console.accounts.models import ApiToken, Role, User
from tests.factories import make_user


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def error(self) -> dict[str, Any]:
        """Holds every error to the one shape."""
        assert set(self.body) == {"error"}
        error: dict[str, Any] = self.body["error"]
        assert set(error) <= {"code", "message", "field", "details"}
        assert error["code"]
        assert error["message"]
        return error


class Api:
    """`Api(Role.OPERATOR)` calls with a token of that scope, `Api()` without any login."""

    def __init__(self, role: Role | None = None, **headers: str) -> None:
        self.user: User | None = None
        self.headers = headers
        self.client = Client(raise_request_exception=False)
        if role is not None:
            self.user = make_user(role)
            _, plain = ApiToken.issue(self.user, "tests", role)
            self.headers = {"Authorization": f"Bearer {plain}", **headers}

    def get(self, path: str, **query: Any) -> Answer:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("POST", path, body, headers=headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("PATCH", path, body, headers=headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.call("DELETE", path, headers=headers)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """`body` None sends none, bytes go as they are, everything else as JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        response = self.client.generic(
            method,
            f"/api{path}",
            data,
            content_type="application/json",
            query_params=query or {},
            headers={**self.headers, **named},
        )
        return Answer(response.status_code, json.loads(response.content), dict(response.items()))


class Browser(Api):
    """Someone logged in by a session, whose CSRF token is checked as in production."""

    def __init__(self, role: Role) -> None:
        super().__init__()
        self.user = make_user(role)
        self.client = Client(enforce_csrf_checks=True, raise_request_exception=False)
        self.client.force_login(self.user)

    def with_csrf(self) -> dict[str, str]:
        secret = "a" * 32
        self.client.cookies["csrftoken"] = secret
        return {"X-CSRFToken": secret}
