"""The audit trail through the API."""

import pytest

from console.accounts import audit
from console.accounts.models import Role
from tests.api.calls import Api
from tests.factories import ADMIN, OPERATOR

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def trail() -> None:
    audit.record(OPERATOR, "server.start", "server chat-1", {"state": "stopped"}, {"state": "pending"}, "more load")
    audit.record(ADMIN, "token.make", "token ci")


def test_the_newest_entry_comes_first_and_says_it_all() -> None:
    newest, oldest = Api(Role.OPERATOR).get("/audit").body["items"]
    assert newest["action"] == "token.make"
    assert (oldest["actor"], oldest["target"], oldest["reason"]) == ("olga", "server chat-1", "more load")
    assert (oldest["before"], oldest["after"]) == ({"state": "stopped"}, {"state": "pending"})


@pytest.mark.parametrize(
    ("filters", "count"),
    [({"actor": "olga"}, 1), ({"action": "token.make"}, 1), ({"target": "server chat-1"}, 1), ({"actor": "vera"}, 0)],
)
def test_entries_are_found_by_who_what_and_which(filters: dict[str, str], count: int) -> None:
    assert Api(Role.OPERATOR).get("/audit", **filters).body["count"] == count


def test_a_viewer_sees_the_trail_as_on_its_page() -> None:
    assert Api(Role.VIEWER).get("/audit").status == 200
    assert Api().get("/audit").status == 401
