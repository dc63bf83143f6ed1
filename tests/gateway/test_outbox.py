"""What waits for Valkey has a bound, and what it costs is counted."""

from typing import Any

from console.gateway.outbox import ENTRY_OVERHEAD_BYTES, Outbox

SIZE = 1000


def room_for(count: int) -> Outbox:
    return Outbox(count * (SIZE + ENTRY_OVERHEAD_BYTES))


def put(outbox: Outbox, *names: str) -> None:
    for name in names:
        outbox.put({"r": name}, SIZE)


def names(entries: list[dict[Any, Any]]) -> list[str]:
    return [entry["r"] for entry in entries]


def test_entries_leave_in_the_order_they_came() -> None:
    outbox = room_for(3)
    put(outbox, "a", "b", "c")
    assert names(outbox.first(2)) == ["a", "b"]


def test_entries_stay_until_they_are_delivered() -> None:
    outbox = room_for(3)
    put(outbox, "a", "b")
    sent = outbox.first(1)
    assert len(outbox) == 2
    outbox.delivered(sent)
    assert names(outbox.first(2)) == ["b"]


def test_the_oldest_are_lost_first_and_counted() -> None:
    outbox = room_for(2)
    put(outbox, "a", "b", "c")
    assert names(outbox.first(3)) == ["b", "c"]
    assert outbox.dropped == 1


def test_entries_dropped_on_their_way_are_not_removed_twice() -> None:
    outbox = room_for(2)
    put(outbox, "a", "b")
    sent = outbox.first(2)
    put(outbox, "c")
    outbox.delivered(sent)
    assert names(outbox.first(3)) == ["c"]


def test_room_is_given_back() -> None:
    outbox = room_for(1)
    put(outbox, "a")
    outbox.delivered(outbox.first(1))
    put(outbox, "b")
    assert outbox.dropped == 0
