"""Blocks, the prefix cache over them, and leases."""

from __future__ import annotations

from console.simulator.kv import BlockPool, Leases


def test_block_ids_begin_with_1() -> None:
    assert BlockPool(4, 16).take([], 2) == [1, 2]


def test_usage_is_the_share_of_blocks_that_somebody_holds() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.take([], 1)
    assert pool.usage == 0.25
    pool.release(blocks)
    assert pool.usage == 0.0


def test_freed_blocks_keep_their_content_until_they_are_needed_again() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.take([], 2)
    pool.write(blocks, [11, 22], [11, 22], full=2)
    pool.release(blocks)
    assert [pool.content(block) for block in blocks] == [11, 22]
    reused = pool.take([], 1)
    assert pool.content(reused[0]) not in (11, 22)


def test_the_end_of_a_prompt_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.take([], 2)
    pool.write(blocks, [11, 22], [11, 22], full=2)
    pool.release(blocks)
    assert pool.take([], 1) == [blocks[1]]
    assert pool.cached_blocks([11, 22]) == [blocks[0]]


def test_cached_blocks_are_shared_and_freed_when_the_last_holder_leaves() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.take([], 1)
    pool.write(blocks, [11], [11], full=1)
    shared = pool.take(pool.cached_blocks([11]), 2)
    assert shared[0] == blocks[0]
    pool.release(blocks)
    assert pool.free == 2
    pool.release(shared)
    assert pool.free == 4


def test_a_partial_block_is_no_prefix_cache() -> None:
    pool = BlockPool(4, 16)
    pool.write(pool.take([], 2), [11, 22], [11, 22], full=1)
    assert len(pool.cached_blocks([11, 22])) == 1


def test_content_of_a_block_that_does_not_exist_is_none() -> None:
    assert BlockPool(4, 16).content(5) is None
    assert BlockPool(4, 16).content(4) == 0


def test_wrong_content_stays_in_the_prefix_cache_as_in_vllm() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.take([], 1)
    pool.write(blocks, [11], [99], full=1)
    assert pool.content(pool.cached_blocks([11])[0]) == 99


def test_a_lease_ends_after_its_duration() -> None:
    leases = Leases(30.0)
    leases.grant("a", [1, 2], now=100.0)
    assert leases.expired(129.9) == []
    assert [lease.blocks for lease in leases.expired(130.0)] == [[1, 2]]


def test_a_heartbeat_extends_a_lease_to_two_thirds_of_the_duration_from_now() -> None:
    leases = Leases(30.0)
    leases.grant("a", [1], now=100.0)
    leases.extend("a", now=125.0)
    assert leases.next_expiry() == 145.0
    leases.extend("a", now=101.0)
    assert leases.next_expiry() == 145.0


def test_a_lease_can_be_ended_once() -> None:
    leases = Leases(30.0)
    leases.grant("a", [1], now=0.0)
    assert leases.end("a") == [1]
    assert leases.end("a") is None
