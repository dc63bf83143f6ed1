"""Which pages of other sites may read an answer: vLLM's flags, and what Starlette's middleware makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
SAFE_HEADERS: Final = frozenset({"Accept", "Accept-Language", "Content-Language", "Content-Type"})
VARY: Final = (
    "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"
)
Headers = list[tuple[str, str]]


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


@dataclass(frozen=True)
class Cors:
    origins: tuple[str, ...] = ("*",)
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False

    def _names_origin(self) -> bool:
        """Answers name the origin that asked, rather than all."""
        return "*" not in self.origins or self.credentials

    def _allows(self, origin: str) -> bool:
        return "*" in self.origins or origin in self.origins

    def of_answer(self, origin: str | None) -> Headers:
        said: Headers = []
        if origin is not None and self._allows(origin):
            said.append(("access-control-allow-origin", origin if self._names_origin() else "*"))
        if origin is not None and self.credentials:
            said.append(("access-control-allow-credentials", "true"))
        return [*said, ("vary", "Origin")]

    def preflight(self, asked: Mapping[str, str]) -> tuple[int, str, Headers]:
        """The status, body and headers of the answer."""
        methods = METHODS if "*" in self.methods else self.methods
        said: Headers = [("vary", VARY)]
        failures = []
        if self._allows(asked["origin"]):
            said.append(("access-control-allow-origin", asked["origin"] if self._names_origin() else "*"))
        else:
            failures.append("origin")
        said += [("access-control-allow-methods", ", ".join(methods)), ("access-control-max-age", "600")]
        if asked["access-control-request-method"] not in methods:
            failures.append("method")
        wanted = asked.get("access-control-request-headers")
        if "*" in self.headers:
            said += [] if wanted is None else [("access-control-allow-headers", wanted)]
        else:
            known = sorted(SAFE_HEADERS | set(self.headers))
            said.append(("access-control-allow-headers", ", ".join(known)))
            if wanted is not None and not _named(wanted) <= {name.lower() for name in known}:
                failures.append("headers")
        if self.credentials:
            said.append(("access-control-allow-credentials", "true"))
        if "access-control-request-private-network" in asked:
            failures.append("private-network")
        if failures:
            return 400, "Disallowed CORS " + ", ".join(failures), said
        return 200, "OK", said


def _named(headers: str) -> set[str]:
    return {name.strip() for name in headers.lower().split(",")}
