"""Every server gets ports of its own."""

import pytest

from console.launch.ports import NoPortsLeft, PortBlock, allot

RANGE = (21000, 21199)


def test_a_block_holds_api_side_channels_and_internal_ports() -> None:
    block = PortBlock(21000, data_parallel=2)
    assert (block.api, list(block.side_channels), block.internal) == (21000, [21001, 21002], 21003)
    assert list(block.ports) == list(range(21000, 21007))


def test_servers_of_one_host_share_no_port() -> None:
    taken: set[int] = set()
    for data_parallel in (1, 4, 1, 8, 2):
        block = allot(RANGE, taken, data_parallel)
        assert taken.isdisjoint(block.ports)
        taken.update(block.ports)


def test_busy_ports_are_avoided() -> None:
    assert allot(RANGE, [21003]).api == 21004


def test_the_default_range_holds_32_servers() -> None:
    taken: set[int] = set()
    for _ in range(32):
        taken.update(allot(RANGE, taken).ports)


def test_a_new_start_gets_another_side_channel_than_the_one_before() -> None:
    assert allot(RANGE, [], previous_api_port=21000).side_channel != PortBlock(21000).side_channel


def test_a_new_start_shares_no_side_channel_with_the_one_before_although_the_range_is_small() -> None:
    previous = PortBlock(21000)
    again = allot((21000, 21010), [], previous_api_port=previous.api)
    assert set(again.side_channels).isdisjoint(previous.side_channels)


def test_the_search_goes_round_at_the_end_of_the_range() -> None:
    assert allot(RANGE, [], previous_api_port=21194).api == 21000


def test_a_previous_port_outside_the_range_does_not_matter() -> None:
    assert allot(RANGE, [], previous_api_port=9).api == 21000


@pytest.mark.parametrize(("port_range", "taken"), [((21000, 21004), []), (RANGE, range(21000, 21200))])
def test_a_full_range_says_what_to_do(port_range: tuple[int, int], taken: list[int]) -> None:
    with pytest.raises(NoPortsLeft, match="--port-range"):
        allot(port_range, taken)
