"""Token ids for the pieces of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer
from twin_parts.prompts import WordPrompts

from eviction_load.sessions import Piece


class Ids(Protocol):
    """What makes the ids of a piece."""

    def of(self, piece: Piece) -> list[int]:
        """As many ids as its tokens; those of a shorter piece of the same key are the beginning of those of a longer one."""


class WordIds:
    """Ids of random words of one token each.

    Args:
        directory: of the model.
        key: of the load: with another one, all texts are others.
    """

    def __init__(self, directory: Path, key: Sequence[object]) -> None:
        self._prompts = WordPrompts.of_model(directory)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._key = tuple(key)

    def of(self, piece: Piece) -> list[int]:
        """See :class:`Ids`."""
        text = self._prompts.text(piece.tokens, *self._key, piece.key)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
