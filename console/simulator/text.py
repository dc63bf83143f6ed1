"""Tokens and text of the simulated model. Pure.

A token is four characters. The words the model writes are four characters long as well, so a text of n tokens counts n
tokens when it comes back in a prompt.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from zlib import crc32

CHARACTERS_PER_TOKEN = 4
VOCABULARY_SIZE = 32_000
EOS_TOKEN_ID = 2
_FIRST_WORD_ID = 100
_FIRST_OTHER_ID = 2_000

# None of the letters needs escaping in JSON, so words go into a stream as they are.
WORDS = [f" {a}{b}{c}" for a in "bdfghjklmnprstvz" for b in "aeiou" for c in "bdfghjklmnprstvz"]
_WORD_IDS = {word: _FIRST_WORD_ID + index for index, word in enumerate(WORDS)}


def pieces(text: str) -> list[str]:
    return [text[i : i + CHARACTERS_PER_TOKEN] for i in range(0, len(text), CHARACTERS_PER_TOKEN)]


def token_id(piece: str) -> int:
    known = _WORD_IDS.get(piece)
    if known is not None:
        return known
    return _FIRST_OTHER_ID + crc32(piece.encode("utf-8", "surrogatepass")) % (VOCABULARY_SIZE - _FIRST_OTHER_ID)


def tokenize(text: str) -> list[int]:
    return [token_id(piece) for piece in pieces(text)]


class Detokenizer:
    """Turns ids back into text: words always, other pieces when they have been tokenized here before."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def remember(self, text: str) -> list[str]:
        """The pieces of `text`, remembered by their ids (at most one per id of the vocabulary)."""
        found = pieces(text)
        for piece in found:
            self._seen.setdefault(token_id(piece), piece)
        return found

    def piece(self, token: int) -> str:
        if _FIRST_WORD_ID <= token < _FIRST_WORD_ID + len(WORDS):
            return WORDS[token - _FIRST_WORD_ID]
        return self._seen.get(token, "\ufffd")

    def text(self, tokens: Iterable[int]) -> str:
        return "".join(self.piece(token) for token in tokens)


def block_hashes(tokens: list[int], block_size: int, salt: int = 0) -> list[int]:
    """One hash per block, the last and partial one included; each depends on all blocks before it."""
    data = array("I", tokens)
    hashes, previous = [], salt
    for start in range(0, len(data), block_size):
        previous = crc32(data[start : start + block_size].tobytes(), previous)
        hashes.append(previous)
    return hashes


def prompt_seed(hashes: list[int]) -> int:
    """What the answer depends on: the whole of the KV that the engine holds for the prompt."""
    return hashes[-1] if hashes else 0


def tokens_seed(tokens: list[int]) -> int:
    """As `prompt_seed`, and the same for every block size."""
    return crc32(array("I", tokens).tobytes())


def word_index(seed: int, position: int) -> int:
    return crc32(position.to_bytes(4, "little"), seed) % len(WORDS)


class Script:
    """What one choice is going to say: piece by piece, without end when `length` is None."""

    length: int | None = None

    def piece(self, position: int) -> str:
        raise NotImplementedError


class FreeText(Script):
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def piece(self, position: int) -> str:
        return WORDS[word_index(self.seed, position)]


class FixedText(Script):
    """A text that the request forces (a tool call, JSON): it ends by itself, with a last token that has no text."""

    def __init__(self, text: str) -> None:
        self._pieces = pieces(text)
        self.length = len(self._pieces) + 1

    def piece(self, position: int) -> str:
        return self._pieces[position] if position < len(self._pieces) else ""


def json_for_schema(schema: object, seed: int) -> str:
    """The smallest JSON text that a schema with types, enum, const, properties, items and anyOf admits."""
    return json.dumps(_example(schema, seed), separators=(", ", ": "))


def _example(schema: object, seed: int) -> object:
    if not isinstance(schema, dict):
        return {"answer": WORDS[word_index(seed, 0)].strip()}
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][seed % len(schema["enum"])]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return _example(schema[name][0], seed)
    return _example_of_type(schema, seed)


def _example_of_type(schema: dict[str, object], seed: int) -> object:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object" or (kind is None and "properties" in schema):
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        return {name: _example(part, crc32(name.encode(), seed)) for name, part in named.items()}
    if kind == "array":
        return [_example(schema.get("items", {"type": "string"}), seed)]
    if kind in ("integer", "number"):
        return _at_least(schema, seed % 10)
    if kind == "boolean":
        return seed % 2 == 0
    if kind == "null":
        return None
    return "".join(WORDS[word_index(seed, i)] for i in range(3)).strip()


def _at_least(schema: dict[str, object], value: int) -> object:
    minimum = schema.get("minimum")
    return minimum if isinstance(minimum, int | float) and minimum > value else value
