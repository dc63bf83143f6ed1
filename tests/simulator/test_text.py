"""Tokens and text of the simulated model."""

from __future__ import annotations

import json

import pytest

from console.simulator.text import (
    WORDS,
    Detokenizer,
    FixedText,
    FreeText,
    block_hashes,
    json_for_schema,
    tokenize,
    tokens_seed,
)


def test_a_token_is_four_characters() -> None:
    assert len(tokenize("x" * 9)) == 3
    assert tokenize("") == []


def test_a_written_text_of_n_tokens_counts_n_tokens_again() -> None:
    script = FreeText(seed=5)
    text = "".join(script.piece(position) for position in range(20))
    assert len(tokenize(text)) == 20


def test_words_need_no_escaping_in_json() -> None:
    assert all(json.dumps(word) == f'"{word}"' and len(word) == 4 for word in WORDS)


def test_text_follows_from_the_seed() -> None:
    def first_words(seed: int) -> list[str]:
        return [FreeText(seed).piece(position) for position in range(8)]

    assert first_words(1) == first_words(1) != first_words(2)


def test_detokenizing_gives_back_what_was_tokenized_here() -> None:
    detokenizer = Detokenizer()
    detokenizer.remember("Grüße, 世界 and more")
    assert detokenizer.text(tokenize("Grüße, 世界 and more")) == "Grüße, 世界 and more"
    assert Detokenizer().text([31_999]) == "\ufffd"


def test_equal_beginnings_have_equal_block_hashes_and_only_those() -> None:
    one, other = block_hashes(list(range(40)), 16), block_hashes([*range(32), 99], 16)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert block_hashes([1, *range(1, 40)], 16)[1] != one[1]


def test_a_salt_separates_prefixes() -> None:
    assert block_hashes([1, 2, 3], 16, salt=7) != block_hashes([1, 2, 3], 16)


def test_the_seed_does_not_depend_on_the_block_size() -> None:
    assert tokens_seed([1, 2, 3]) == tokens_seed([1, 2, 3]) != tokens_seed([1, 2])


def test_a_forced_text_ends_with_a_token_without_text() -> None:
    script = FixedText('{"a": 1}')
    assert script.length == 3
    assert "".join(script.piece(position) for position in range(3)) == '{"a": 1}'
    assert script.piece(2) == ""


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}, dict),
        ({"type": "array", "items": {"type": "boolean"}}, list),
        ({"enum": ["x", "y"]}, str),
        ({"anyOf": [{"type": "number"}]}, int),
        ({"const": None}, type(None)),
        ({"type": ["string", "null"]}, str),
        (None, dict),
    ],
)
def test_json_for_a_schema_is_json_of_its_type(schema: object, kind: type) -> None:
    assert isinstance(json.loads(json_for_schema(schema, 3)), kind)
