"""Requests that arrive together begin one per turn of the event loop."""

import asyncio

import pytest

from routing import turnstile as turnstile_module
from routing.turnstile import Turnstile


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_request_that_comes_alone_begins_at_once() -> None:
    turnstile, begun = Turnstile(), list[int]()
    turnstile.enter(lambda: begun.append(1))
    assert begun == [1]


async def test_requests_that_come_together_begin_one_per_turn_in_order() -> None:
    turnstile, begun = Turnstile(), list[int]()
    for number in range(4):
        turnstile.enter(lambda number=number: begun.append(number))  # type: ignore[misc]
    seen = []
    for _ in range(4):
        seen.append(list(begun))
        await turns(1)
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


async def test_one_that_comes_while_others_wait_does_not_overtake_them() -> None:
    turnstile, begun = Turnstile(), list[str]()
    for name in ("first", "second", "third"):
        turnstile.enter(lambda name=name: begun.append(name))  # type: ignore[misc]
    await asyncio.sleep(0)
    turnstile.enter(lambda: begun.append("late"))
    await turns(5)
    assert begun == ["first", "second", "third", "late"]


async def test_after_a_quiet_turn_the_next_begins_at_once_again() -> None:
    turnstile, begun = Turnstile(), list[int]()
    turnstile.enter(lambda: begun.append(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    turnstile.enter(lambda: begun.append(2))
    assert begun == [1, 2]


async def test_what_a_beginning_raises_does_not_hold_up_the_others() -> None:
    turnstile, begun = Turnstile(), list[int]()
    failures = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError("no")

    turnstile.enter(lambda: begun.append(1))
    turnstile.enter(fail)
    turnstile.enter(lambda: begun.append(3))
    await turns(5)
    assert begun == [1, 3]
    assert len(failures) == 1


async def test_ends_go_one_per_turn() -> None:
    turnstile, seen = Turnstile(), list[str]()
    for name in ("an end", "another", "the last"):
        turnstile.leave(lambda name=name: seen.append(name))  # type: ignore[misc]
    counts = []
    for _ in range(4):
        counts.append(len(seen))
        await turns(1)
    assert counts == [0, 1, 2, 3]
    assert seen == ["an end", "another", "the last"]


async def test_a_request_that_comes_while_ends_wait_begins_at_once() -> None:
    turnstile, seen = Turnstile(), list[str]()
    for name in ("an end", "another"):
        turnstile.leave(lambda name=name: seen.append(name))  # type: ignore[misc]
    await turns(1)
    turnstile.enter(lambda: seen.append("a request"))
    await turns(3)
    assert seen == ["an end", "a request", "another"]


async def test_ends_wait_for_requests_that_want_to_begin_and_then_come_in_order() -> None:
    turnstile, seen = Turnstile(), list[str]()
    for name in ("first", "second"):
        turnstile.enter(lambda name=name: seen.append(name))  # type: ignore[misc]
    turnstile.leave(lambda: seen.append("an end"))
    turnstile.leave(lambda: seen.append("another end"))
    turnstile.enter(lambda: seen.append("third"))
    await turns(8)
    assert seen == ["first", "second", "third", "an end", "another end"]


async def test_an_end_does_not_wait_for_ever_while_requests_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile_module, "PATIENCE_S", 0.0)
    turnstile, seen = Turnstile(), list[str]()
    for _ in range(3):
        turnstile.enter(lambda: seen.append("a request"))
    turnstile.leave(lambda: seen.append("an end"))
    await turns(8)
    assert seen == ["a request", "an end", "a request", "a request"]
