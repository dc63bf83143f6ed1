"""What the workers of one router share: counts that all choose by, and memories that all read and write."""

from routing.affinity import REMEMBERED, Memory
from routing.backend import Backend
from routing.choose import Chooser, Wish, lay_out
from routing.loads import Load, take, take_handoff
from routing.shared import BUCKETS, WAYS, Seat, Shared
from routing.table import Deployment, Policy, Role, Server

LIMIT = 4


def servers(*ids: str) -> tuple[Server, ...]:
    roles: dict[str, Role] = {"P": "prefill", "D": "decode", "N": "plain"}
    return tuple(Server(name, name, roles[name[0]], "http://127.0.0.1:1") for name in ids)


def chooser(seat: Seat, wish: Wish, *ids: str, policy: Policy | None = None) -> Chooser:
    """As the worker in this seat chooses."""
    deployment = Deployment("m", "m", servers(*ids), policy=policy or Policy())
    backends = [Backend(server, LIMIT, seat.loads[server.id]) for server in deployment.servers]
    layout = lay_out(deployment, backends)
    layout.sessions, layout.prefixes = seat.sessions, seat.prefixes
    return Chooser(layout, wish, now=0.0)


def test_each_worker_sees_what_the_others_have_under_way() -> None:
    shared = Shared(["D1", "D2"], workers=3)
    first, second, third = (shared.seat(worker).loads["D2"] for worker in range(3))
    take(first, prompt_tokens=100, streams=1)
    taken, handoff = take(second, prompt_tokens=10), take_handoff(second)
    seen = (third.all_inflight, third.all_streams, third.all_prompt_tokens, third.all_handoffs)
    assert (third.inflight, seen) == (0, (2, 1, 110, 1))
    taken.give_back()
    handoff.give_back()
    assert (first.all_inflight, second.all_prompt_tokens, third.all_handoffs) == (1, 100, 0)
    assert shared.seat(0).loads["D1"].all_inflight == 0


def test_a_router_that_shares_nothing_counts_its_own() -> None:
    load = Load()
    take(load, prompt_tokens=3)
    assert (load.all_inflight, load.all_prompt_tokens) == (1, 3)


def test_what_a_worker_that_is_gone_had_under_way_is_forgotten() -> None:
    shared = Shared(["N1"], workers=2)
    lost, left = shared.seat(0).loads["N1"], shared.seat(1).loads["N1"]
    take(lost)
    take(left)
    shared.clear(0)
    assert (left.all_inflight, shared.seat(0).loads["N1"].all_inflight) == (1, 1)


def test_a_server_that_is_busy_for_another_worker_is_not_chosen() -> None:
    shared = Shared(["P1", "P2", "D1", "D2"], workers=2)
    mine, other = shared.seat(0), shared.seat(1)
    take(other.loads["P1"], prompt_tokens=1000)
    take(other.loads["D2"], streams=1)
    for _ in range(10):
        choice = chooser(mine, Wish(), "P1", "P2", "D1", "D2").choose()
        assert choice.prefill is not None
        assert (choice.prefill.id, choice.decode.id) == ("P2", "D1")


def test_the_limit_of_a_server_is_that_of_all_workers_together() -> None:
    shared = Shared(["N1"], workers=2)
    seats = [shared.seat(0), shared.seat(1)]
    taken = [take(seats[number % 2].loads["N1"]) for number in range(LIMIT)]
    backends = [Backend(servers("N1")[0], LIMIT, seat.loads["N1"]) for seat in seats]
    assert [backend.is_full for backend in backends] == [True, True]
    taken[0].give_back()
    assert [backend.is_full for backend in backends] == [False, False]


def test_short_prompts_are_split_when_another_workers_streams_keep_the_decode_server_busy() -> None:
    shared = Shared(["P1", "D1"], workers=2)
    policy = Policy(short_prompt_tokens=100, busy_decode_streams=1)
    ask = chooser(shared.seat(0), Wish(prompt_tokens=10), "P1", "D1", policy=policy)
    take(shared.seat(1).loads["D1"], streams=2)
    assert ask.choose().route == "split"


def test_a_session_that_another_worker_began_stays_where_it_is() -> None:
    shared = Shared(["N1", "N2", "N3", "N4"], workers=2)
    shared.seat(1).sessions.put("someone", "N3")
    choice = chooser(shared.seat(0), Wish(session="someone"), "N1", "N2", "N3", "N4").choose()
    assert (choice.decode.id, choice.reason) == ("N3", "session on N3")


def memories() -> tuple[Memory, Memory]:
    shared = Shared(["N1", "N2"], workers=2)
    return shared.seat(0).responses, shared.seat(1).responses


def test_what_one_worker_remembers_all_know_at_once() -> None:
    one, other = memories()
    assert other.get("resp_1") is None
    one.put("resp_1", "N2")
    assert (other.get("resp_1"), other.get("resp_2")) == ("N2", None)


def test_the_last_word_counts_whoever_has_it() -> None:
    one, other = memories()
    one.put(7, "N1")
    other.put(7, "N2")
    assert one.get(7) == "N2"
    one.put(7, "N1")
    assert other.get(7) == "N1"


def test_many_keys_are_kept_apart() -> None:
    one, other = memories()
    for number in range(REMEMBERED // 2):
        (one, other)[number % 2].put(f"key-{number}", f"N{number % 2 + 1}")
    found = [one.get(f"key-{number}") for number in range(REMEMBERED // 2)]
    right = sum(server == f"N{number % 2 + 1}" for number, server in enumerate(found))
    assert right > 0.99 * len(found)
    assert set(found) <= {"N1", "N2", None}
    assert [key for key in range(1000) if other.get(f"stranger-{key}") is not None] == []


def test_a_full_place_forgets_something_and_takes_the_new() -> None:
    one, _ = memories()
    same_place = [number * BUCKETS for number in range(1, WAYS + 2)]
    for key in same_place:
        one.put(key, "N1")
    known = [key for key in same_place if one.get(key) is not None]
    assert len(known) == WAYS
    assert same_place[-1] in known
