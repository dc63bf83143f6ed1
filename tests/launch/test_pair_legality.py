"""Which prefill and decode servers can hand over KV at all."""

import pytest

from console.launch.pairs import Side, options_of, why_illegal


def side(**options: str) -> Side:
    return Side(
        "/models/tiny", {f"--{name.replace('_', '-')}": value for name, value in options.items()}, "NixlConnector"
    )


def test_equal_servers_pair() -> None:
    assert why_illegal(side(block_size="16"), side(block_size="16")) is None


@pytest.mark.parametrize("option", ["dtype", "block_size", "kv_cache_dtype", "max_model_len"])
def test_what_must_agree_is_named_with_both_values(option: str) -> None:
    problem = why_illegal(side(**{option: "16"}), side(**{option: "32"}))
    assert problem is not None
    assert "16 and 32" in problem


def test_a_value_given_on_one_side_only_differs() -> None:
    assert why_illegal(side(dtype="float16"), side()) is not None


@pytest.mark.parametrize(
    ("prefill", "decode", "legal"), [("1", "2", True), ("2", "4", True), ("2", "1", False), ("2", "3", False)]
)
def test_decode_needs_a_multiple_of_prefills_tensor_parallelism(prefill: str, decode: str, legal: bool) -> None:
    problem = why_illegal(side(tensor_parallel_size=prefill), side(tensor_parallel_size=decode))
    assert (problem is None) is legal


def test_the_same_model_under_another_path_does_not_fit() -> None:
    other = Side("/mnt/models/tiny", {}, "NixlConnector")
    assert "named differently" in (why_illegal(side(), other) or "")


def test_versions_differ_only_when_both_are_known() -> None:
    old, new, unknown = (Side("m", {}, "c", version) for version in ("0.30.0", "0.31.0", ""))
    assert why_illegal(old, unknown) is None
    assert "0.30.0 and 0.31.0" in (why_illegal(old, new) or "")


def test_options_are_read_in_every_spelling() -> None:
    argv = ["vllm", "serve", "m", "--block-size=16", "--enforce-eager", "-tp", "2", "--max_model_len", "4096"]
    assert options_of(argv) == {
        "--block-size": "16",
        "--enforce-eager": "",
        "--tensor-parallel-size": "2",
        "--max-model-len": "4096",
    }
