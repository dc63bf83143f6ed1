"""The end of a demo with real engines. The last file that needs it."""

import pytest

from tests.real_engine.yard import Yard, wait_until_gone

pytestmark = pytest.mark.real_engine


def test_the_end_of_the_demo_leaves_no_engine_behind(demo: Yard) -> None:
    name = demo.make_ready(demo.in_role("prefill")["name"])["name"]
    group = demo.observed(name)["group_pids"]
    assert group
    demo.stop()
    assert demo.processes() == []
    wait_until_gone(group)
