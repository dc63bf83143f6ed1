"""What one server shows of itself before it takes traffic."""

import pytest

from console.launch.canary import ServerResult, Target, try_server
from tests.simulator.harness import NAME, SimulatedServer


@pytest.mark.parametrize(("flags", "forces_usage"), [([], False), (["--enable-force-include-usage"], True)])
def test_a_trial_tells_the_context_length_and_whether_streams_tell_their_usage_unasked(
    flags: list[str], forces_usage: bool
) -> None:
    with SimulatedServer(args=["--max-model-len", "4096", *flags]) as server:
        assert try_server(Target("one", server.url, NAME)) == ServerResult(4096, forces_usage)
