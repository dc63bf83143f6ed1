"""Real vLLM with NIXL on this machine's CPU, for all of these tests: a prefill and a decode server, and a third. Their
model takes pictures too.

Three engines are what two cores can carry, and a start takes half a minute or more. Files run in the order of their
names: `test_real_vllm_the_end` ends what the others used.
"""

from collections.abc import Iterator

import pytest

from console.demo.plans import real_engine_home
from tests.real_engine.yard import START_LIMIT_S, Yard

STRUCTURED = '{"backend": "xgrammar", "enable_in_reasoning": true, "disable_any_whitespace": true}'
TOOLS = "--enable-auto-tool-choice --tool-call-parser hermes --exclude-tools-when-tool-choice-none"
REASONING = "--reasoning-parser granite"
ENGINE_ARGS = f"--enable-scale-out {TOOLS} {REASONING} --structured-outputs-config '{STRUCTURED}'"
"""So that tools, reasoning, structured output and token ids can be asked for."""


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    model = str(real_engine_home() / "tiny-vision-model")
    folder = tmp_path_factory.mktemp("real")
    demo = Yard(folder, ENGINE="vllm", TRAFFIC="0", ENGINE_ARGS=ENGINE_ARGS, ENGINE_MODEL=model)
    try:
        demo.add_early("plain")
        demo.wait_until_ready(START_LIMIT_S)
        yield demo
    finally:
        demo.stop()


@pytest.fixture(scope="session")
def third(demo: Yard) -> str:
    """Name of a server of the same deployment, added over REST as a plain one, which it is until it is moved."""
    return str(demo.in_role("plain")["name"])
