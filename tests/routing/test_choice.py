"""Which servers a request goes to, and why."""

import random
import time
from collections import Counter
from typing import Any

import pytest

from routing.backend import Backend
from routing.choose import Chooser, Layout, Wish, lay_out
from routing.errors import Refusal
from routing.loads import Sample, take
from routing.table import Deployment, Policy, Server
from tests.routing.scripted import role_of

NOW = 1000.0


def layout(*names: str, policy: Policy | None = None, **more: Any) -> Layout:
    servers = tuple(Server(name, name, role_of(name), f"http://{name}:1") for name in names)
    deployment = Deployment("m", "m", servers, policy=policy or Policy(), **more)
    return lay_out(deployment, [Backend(server, 2048) for server in servers])


def choose(place: Layout, wish: Wish | None = None, avoid: frozenset[str] = frozenset()) -> Any:
    return Chooser(place, wish or Wish(prompt_tokens=100), NOW, avoid).choose()


def backend(place: Layout, name: str) -> Backend:
    return place.by_id[name]


def unevenness(place: Layout, burst: int) -> int:
    """By how many requests of a burst the servers of one role differ at the most."""
    for _ in range(burst):
        choice = choose(place)
        take(choice.prefill.load, prompt_tokens=100)
        take(choice.decode.load, streams=1)
    pools = ([server.load.inflight for server in pool] for pool in (place.prefill, place.decode))
    return max(max(counts) - min(counts) for counts in pools)


def test_a_burst_spreads_evenly_over_idle_servers() -> None:
    place = layout("P1", "P2", "P3", "P4", "D1", "D2", "D3", "D4")
    assert unevenness(place, 50) <= 2


def test_short_prompts_avoid_the_prefill_server_with_a_long_one() -> None:
    place = layout("P1", "P2", "D1")
    take(backend(place, "P1").load, prompt_tokens=64_000)
    for _ in range(10):
        choice = choose(place)
        take(choice.prefill.load, prompt_tokens=100)
        assert choice.prefill.id == "P2"


def test_streams_are_counted_to_their_end() -> None:
    place = layout("P1", "D1", "D2")
    for _ in range(4):
        take(backend(place, "D1").load, streams=1)
    assert choose(place).decode.id == "D2"


def test_a_full_kv_cache_weighs_against_a_decode_server() -> None:
    place = layout("P1", "D1", "D2")
    for name, usage in (("D1", 0.98), ("D2", 0.10)):
        take(backend(place, name).load, streams=1)
        backend(place, name).sample = Sample(NOW, kv_usage=usage)
    assert {choose(place).decode.id for _ in range(20)} == {"D2"}


def test_a_server_of_unknown_kv_use_is_not_taken_for_idle() -> None:
    place = layout("P1", "D1", "D2")
    backend(place, "D1").sample = Sample(NOW, kv_usage=0.2)
    backend(place, "D2").sample = Sample(NOW - 60, kv_usage=0.0)
    assert {choose(place).decode.id for _ in range(20)} == {"D1"}


def test_a_server_without_samples_is_not_flooded() -> None:
    place = layout("P1", "D1", "D2")
    backend(place, "D1").sample = Sample(NOW, kv_usage=0.5)
    for _ in range(40):
        take(choose(place).decode.load, streams=1)
    assert abs(backend(place, "D1").load.inflight - backend(place, "D2").load.inflight) <= 2


def test_ties_are_broken_by_lot() -> None:
    place = layout("P1", "P2", "D1", "D2")
    counts = Counter(choose(place).prefill.id for _ in range(400))
    assert min(counts["P1"], counts["P2"]) > 100


def test_many_servers_are_used_evenly() -> None:
    random.seed(3)  # Of a thousand lots two are less even.
    place = layout(*(f"P{n}" for n in range(50)), *(f"D{n}" for n in range(50)))
    assert unevenness(place, 1000) <= 8


def test_the_cost_of_a_choice_does_not_grow_with_the_number_of_servers() -> None:
    """Generous: a pass over all thousand would cost fifty times the small one. In time of this thread alone, as others
    may want the core."""
    few, many = layout("P1", "P2", "D1", "D2"), layout(*(f"P{n}" for n in range(1000)), *(f"D{n}" for n in range(1000)))
    assert timed(many) < 8 * timed(few)


def timed(place: Layout) -> float:
    def once() -> float:
        start = time.thread_time()
        for _ in range(1000):
            choose(place)
        return time.thread_time() - start

    return min(once() for _ in range(3))


def test_only_verified_pairs_are_chosen() -> None:
    place = layout("P1", "P2", "D1", "D2", pairs=frozenset({("P1", "D2"), ("P2", "D1")}))
    chosen = {(choice.prefill.id, choice.decode.id) for choice in (choose(place) for _ in range(60))}
    assert chosen == {("P1", "D2"), ("P2", "D1")}


def test_a_prefill_server_whose_partners_are_gone_is_passed_over() -> None:
    place = layout("P1", "P2", "D1", "D2", pairs=frozenset({("P1", "D1"), ("P2", "D2")}))
    assert {choose(place, avoid=frozenset({"D1"})).prefill.id for _ in range(20)} == {"P2"}


@pytest.mark.parametrize(("tokens", "route"), [(9, "short prompt"), (10, "split")])
def test_short_prompts_skip_prefill_under_the_threshold(tokens: int, route: str) -> None:
    place = layout("P1", "D1", policy=Policy(short_prompt_tokens=10))
    assert choose(place, Wish(prompt_tokens=tokens)).route == route


def test_a_busy_decode_server_has_even_short_prompts_prefilled() -> None:
    place = layout("P1", "D1", policy=Policy(short_prompt_tokens=1000, busy_decode_streams=2))
    assert choose(place).route == "short prompt"
    for _ in range(3):
        take(backend(place, "D1").load, streams=1)
    assert choose(place).route == "split"


def test_a_share_of_traffic_goes_to_plain_servers() -> None:
    random.seed(3)
    place = layout("P1", "D1", "N1", policy=Policy(plain_share_percent=30))
    counts = Counter(choose(place).route for _ in range(1000))
    assert 230 < counts["plain"] < 370
    assert counts["plain"] + counts["split"] == 1000


def test_without_a_share_plain_servers_wait_for_fallbacks() -> None:
    place = layout("P1", "D1", "N1")
    assert {choose(place).route for _ in range(50)} == {"split"}


def test_requests_for_one_server_go_to_a_plain_one_first() -> None:
    place = layout("P1", "D1", "N1")
    choice = choose(place, Wish(whole="several prompts"))
    assert (choice.route, choice.reason, choice.decode.id, choice.prefill) == ("direct", "several prompts", "N1", None)
    assert choose(layout("P1", "D1"), Wish(whole="several prompts")).decode.id == "D1"


def test_a_prompt_that_begins_alike_goes_where_it_is_cached() -> None:
    place = layout("P1", "P2", "P3", "D1")
    place.prefixes.put(77, "P2")
    wish = Wish(prompt_tokens=2000, prefix=[(1024, 55), (2048, 77), (4096, 99)])
    choice = choose(place, wish)
    assert (choice.prefill.id, choice.reason) == ("P2", "prefix on P2")


def test_the_longest_beginning_decides() -> None:
    place = layout("P1", "P2", "D1")
    place.prefixes.put(55, "P1")
    place.prefixes.put(77, "P2")
    assert choose(place, Wish(prompt_tokens=2000, prefix=[(1024, 55), (2048, 77)])).prefill.id == "P2"


def test_a_cache_is_not_worth_a_longer_wait() -> None:
    place = layout("P1", "P2", "D1")
    place.prefixes.put(77, "P2")
    take(backend(place, "P2").load, prompt_tokens=50_000)
    assert choose(place, Wish(prompt_tokens=2000, prefix=[(2048, 77)])).prefill.id == "P1"


def test_a_session_stays_on_its_server_and_can_be_turned_off() -> None:
    place = layout("P1", "P2", "P3", "D1")
    place.sessions.put("ada", "P3")
    choice = choose(place, Wish(prompt_tokens=500, session="ada"))
    assert (choice.prefill.id, choice.reason) == ("P3", "session on P3")
    off = layout("P1", "P2", "P3", "D1", policy=Policy(session_affinity=False))
    off.sessions.put("ada", "P3")
    assert choose(off, Wish(prompt_tokens=500, session="ada")).reason == "least busy"


@pytest.mark.parametrize("route", ["plain", "direct"])
def test_a_burst_of_prompts_that_begin_alike_spreads_over_plain_servers(route: str) -> None:
    place = layout("N1", "N2", "N3", "N4")
    place.prefixes.put(77, "N1")
    whole = "several prompts" if route == "direct" else None
    wish = Wish(prompt_tokens=6000, prefix=[(16384, 77)], whole=whole)
    assert choose(place, wish).reason == (whole or "prefix on N1")
    for _ in range(50):
        choice = choose(place, wish)
        take(choice.decode.load, streams=1)
        place.prefixes.put(77, choice.decode.id)
    counts = [server.load.inflight for server in place.plain]
    assert max(counts) - min(counts) <= 2


def test_one_stream_more_is_no_reason_to_leave_a_plain_server_that_has_the_prompt() -> None:
    place = layout("N1", "N2")
    place.sessions.put("ada", "N1")
    take(backend(place, "N1").load, streams=1)
    assert {choose(place, Wish(prompt_tokens=500, session="ada")).decode.id for _ in range(20)} == {"N1"}


@pytest.mark.parametrize("names", [("P1", "P2", "D1"), ("N1", "N2")])
def test_what_a_silent_server_has_cached_does_not_draw_requests_there(names: tuple[str, ...]) -> None:
    place = layout(*names)
    fall_silent(place, names[0])
    place.prefixes.put(77, names[0])
    place.sessions.put("ada", names[0])
    wish = Wish(prompt_tokens=2000, session="ada", prefix=[(2048, 77)])
    chosen = [choose(place, wish) for _ in range(20)]
    assert {(choice.prefill or choice.decode).id for choice in chosen} == {names[1]}


def test_a_draining_server_gets_nothing_new() -> None:
    servers = (
        Server("P1", "P1", "prefill", "http://a:1", accepting=False),
        Server("P2", "P2", "prefill", "http://b:1"),
    )
    decode = Server("D1", "D1", "decode", "http://c:1")
    place = lay_out(Deployment("m", "m", (*servers, decode)), [Backend(s, 10) for s in (*servers, decode)])
    assert {choose(place).prefill.id for _ in range(20)} == {"P2"}


def test_a_silent_server_is_avoided_while_another_is_there() -> None:
    place = layout("P1", "D1", "D2")
    take(backend(place, "D1").load, streams=1)
    take(backend(place, "D2").load, streams=1)
    take(backend(place, "D2").load, streams=1)
    for name in ("D1", "D2"):
        work_since(place, name, NOW - 60, shows_tokens=True)
    backend(place, "D2").life.moved_at = NOW - 0.1
    assert choose(place).decode.id == "D2"


def work_since(place: Layout, name: str, at: float, *, shows_tokens: bool = False) -> None:
    life = backend(place, name).life
    life.begin(shows_tokens=shows_tokens)
    life.work.counted_at = life.streams.counted_at = at


def fall_silent(place: Layout, name: str) -> None:
    work_since(place, name, NOW - 600)


@pytest.mark.parametrize(
    ("names", "silent", "policy", "wish", "route", "decode"),
    [
        (("N1", "P1", "D1"), "N1", Policy(plain_share_percent=100), Wish(100), "split", "D1"),
        (("N1", "P1", "D1"), "N1", Policy(), Wish(100, whole="n is 2"), "direct", "D1"),
        (("N1", "P1", "D1"), "D1", Policy(plain_share_percent=0), Wish(100), "fallback", "N1"),
        (("N1", "P1", "D1"), "D1", Policy(plain_share_percent=0, short_prompt_tokens=500), Wish(100), "fallback", "N1"),
        (("P1", "D1"), "P1", Policy(), Wish(100), "fallback", "D1"),
        (("P1", "D1"), "P1", Policy(when_no_pair="refuse"), Wish(100), "split", "D1"),
        (("P1", "D1"), "D1", Policy(), Wish(100), "split", "D1"),
        (("N1",), "N1", Policy(), Wish(100), "plain", "N1"),
    ],
)
def test_a_silent_server_is_avoided_while_others_can_do_it_in_another_way(
    names: tuple[str, ...], silent: str, policy: Policy, wish: Wish, route: str, decode: str
) -> None:
    place = layout(*names, policy=policy)
    fall_silent(place, silent)
    choice = choose(place, wish)
    assert (choice.route, choice.decode.id) == (route, decode)


def test_a_prefill_server_is_passed_over_whose_partners_are_silent() -> None:
    place = layout("P1", "P2", "D1", "D2", pairs=frozenset({("P1", "D1"), ("P2", "D2")}))
    fall_silent(place, "D1")
    assert {choose(place).prefill.id for _ in range(20)} == {"P2"}


def test_that_a_server_is_silent_is_said_in_words() -> None:
    place = layout("P1", "D1")
    fall_silent(place, "P1")
    assert choose(place).reason == "fallback: no prefill server is usable (P1 has work and brings no answers)"


def test_nothing_at_all_is_said_in_words() -> None:
    place = layout("P1", "D1", policy=Policy(when_no_pair="refuse"))
    with pytest.raises(Refusal, match=r"no prefill server is usable .P1 failed this request.*set to refuse"):
        choose(place, avoid=frozenset({"P1"}))
    with pytest.raises(Refusal, match="no plain or decode server is there"):
        choose(layout("P1"))
