"""Which pages of other sites may read an answer, as vLLM says it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from console.simulator.cors import METHODS, VARY, Cors
from tests.simulator.harness import SimulatedServer

APP = "https://app.example"
PREFLIGHT = {
    "Origin": APP,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer() as started:
        yield started


@pytest.fixture(scope="module")
def choosy() -> Iterator[SimulatedServer]:
    with SimulatedServer(args=["--allowed-origins", f'["{APP}"]', "--api-key", "secret"]) as started:
        yield started


def cors_of(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-") or name == "vary"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nothing"])
def test_a_preflight_is_answered_for_any_path(server: SimulatedServer, path: str) -> None:
    response = httpx.options(f"{server.url}{path}", headers=PREFLIGHT)
    assert (response.status_code, response.text, response.headers["content-type"]) == (
        200,
        "OK",
        "text/plain; charset=utf-8",
    )
    assert cors_of(response) == {
        "vary": VARY,
        "access-control-allow-origin": "*",
        "access-control-allow-methods": ", ".join(METHODS),
        "access-control-max-age": "600",
        "access-control-allow-headers": "authorization,content-type",
    }


def test_options_without_a_method_that_is_asked_for_is_no_preflight(server: SimulatedServer) -> None:
    response = httpx.options(f"{server.url}/v1/completions", headers={"Origin": APP})
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("stream", [False, True])
def test_answers_may_be_read_by_all_pages(server: SimulatedServer, stream: bool) -> None:
    body = {"prompt": "x", "max_tokens": 1, "stream": stream}
    response = httpx.post(f"{server.url}/v1/completions", json=body, headers={"Origin": APP})
    assert response.status_code == 200
    assert cors_of(response) == {"access-control-allow-origin": "*", "vary": "Origin"}


def test_so_may_errors(server: SimulatedServer) -> None:
    response = httpx.get(f"{server.url}/nothing", headers={"Origin": APP})
    assert (response.status_code, response.headers["access-control-allow-origin"]) == (404, "*")


def test_who_names_no_origin_is_told_of_none(server: SimulatedServer) -> None:
    assert cors_of(httpx.get(f"{server.url}/v1/models")) == {"vary": "Origin"}


def test_origins_may_be_chosen(choosy: SimulatedServer) -> None:
    mine = httpx.options(f"{choosy.url}/v1/models", headers=PREFLIGHT)
    other = httpx.options(f"{choosy.url}/v1/models", headers=PREFLIGHT | {"Origin": "https://other.example"})
    assert (mine.status_code, mine.headers["access-control-allow-origin"]) == (200, APP)
    assert (other.status_code, other.text) == (400, "Disallowed CORS origin")
    assert "access-control-allow-origin" not in other.headers


def test_a_missing_key_is_told_to_no_page(choosy: SimulatedServer) -> None:
    """The key is looked at before."""
    response = httpx.get(f"{choosy.url}/v1/models", headers={"Origin": APP})
    assert (response.status_code, cors_of(response)) == (401, {})


def test_credentials_name_the_origin() -> None:
    cors = Cors(credentials=True)
    assert dict(cors.of_answer(APP)) == {
        "access-control-allow-origin": APP,
        "access-control-allow-credentials": "true",
        "vary": "Origin",
    }


def test_methods_and_headers_may_be_chosen() -> None:
    asked = {name.lower(): value for name, value in PREFLIGHT.items()}
    status, words, said = Cors(methods=("GET",), headers=("X-Own",)).preflight(asked)
    assert (status, words) == (400, "Disallowed CORS method, headers")
    assert (
        dict(said)["access-control-allow-headers"] == "Accept, Accept-Language, Content-Language, Content-Type, X-Own"
    )
