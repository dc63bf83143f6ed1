"""The step model alone: who gets tokens in a step, and how long it lasts."""

from __future__ import annotations

from console.simulator.kv import BlockPool
from console.simulator.steps import Scheduler, Sequence, Step, StepCosts
from console.simulator.text import block_hashes

COSTS = StepCosts(step_ms=15, prompt_token_ms=0.1, stream_ms=0.1, context_token_ms=0.00015)


def scheduler(blocks: int = 1000, budget: int = 2048, sequences: int = 256) -> Scheduler:
    return Scheduler(BlockPool(blocks, 16), budget, sequences)


def sequence(name: str, prompt_tokens: int, first_token: int = 0) -> Sequence:
    tokens = list(range(first_token, first_token + prompt_tokens))
    return Sequence(name, prompt_tokens, block_hashes(tokens, 16), max_tokens=100)


def run(scheduler: Scheduler) -> Step:
    """One step, with what the engine does after it."""
    step = scheduler.plan()
    for one, count in step.tokens.items():
        one.computed += count
        if one.computed == one.length:
            one.generated += 1
    return step


def test_step_length_adds_up_its_four_parts() -> None:
    assert COSTS.length_s(prompt_tokens=2048, streams=10, context_tokens=100_000) == 0.015 + 0.2048 + 0.001 + 0.015


def test_speed_divides_the_length() -> None:
    assert StepCosts(15, 0, 0, 0, speed=3).length_s(0, 0, 0) == 0.005


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    engine = scheduler(budget=2048)
    long = sequence("long", 5000)
    engine.add(long)
    assert [run(engine).prompt_tokens for _ in range(3)] == [2048, 2048, 904]
    assert long.generated == 1


def test_a_running_stream_gets_its_token_in_each_step_of_a_long_prompt_and_waits_for_all_of_it() -> None:
    engine = scheduler(budget=2048)
    engine.add(sequence("stream", 20))
    run(engine)
    alone = run(engine).length_s(COSTS)
    engine.add(sequence("long", 5000, first_token=50_000))
    beside = run(engine)
    assert len(beside.tokens) == 2
    assert beside.length_s(COSTS) > 10 * alone


def test_kv_from_outside_costs_one_token_of_the_step_instead_of_the_prompt() -> None:
    engine = scheduler()
    remote = sequence("remote", 5000)
    remote.remote = True
    engine.add(remote)
    fetching = engine.plan()
    assert (fetching.fetching, fetching.tokens) == ([remote], {})
    engine.arrived(remote, computed=4999)
    assert run(engine).prompt_tokens == 1
    assert remote.generated == 1


def test_waiting_sequences_are_admitted_in_order_up_to_max_num_seqs() -> None:
    engine = scheduler(sequences=2)
    waiting = [sequence(name, 10) for name in "abc"]
    for one in waiting:
        engine.add(one)
    assert engine.plan().admitted == waiting[:2]
    assert list(engine.waiting) == waiting[2:]


def test_no_sequence_is_admitted_without_blocks_for_it() -> None:
    engine = scheduler(blocks=10)
    first, second = sequence("first", 100), sequence("second", 100, first_token=1000)
    engine.add(first)
    engine.add(second)
    assert engine.plan().admitted == [first]
    assert engine.blocked_by_capacity
    engine.pool.release(engine.remove(first))
    assert engine.plan().admitted == [second]


def test_the_latest_arrival_is_preempted_when_blocks_run_out_and_starts_again_later() -> None:
    engine = scheduler(blocks=4)
    old, new = sequence("old", 31), sequence("new", 31, first_token=1000)
    engine.add(old)
    engine.add(new)
    run(engine)
    steps = [run(engine) for _ in range(3)]
    assert [one for step in steps for one in step.preempted] == [new]
    assert (new.computed, new.blocks) == (0, [])
    assert engine.running == [old]
    engine.pool.release(engine.remove(old))
    assert run(engine).admitted == [new]


def test_a_prompt_seen_before_is_computed_from_the_first_new_block_on() -> None:
    engine = scheduler()
    first = sequence("first", 100)
    engine.add(first)
    run(engine)
    engine.pool.write(first.blocks, first.hashes, first.hashes, full=6)
    again = sequence("again", 100)
    engine.add(again)
    step = engine.plan()
    assert (again.cached_tokens, step.tokens[again]) == (96, 4)


def test_skipping_the_cache_computes_everything() -> None:
    engine = scheduler()
    first = sequence("first", 100)
    engine.add(first)
    run(engine)
    engine.pool.write(first.blocks, first.hashes, first.hashes, full=6)
    again = sequence("again", 100)
    again.skip_cache = True
    engine.add(again)
    assert engine.plan().tokens[again] == 100
