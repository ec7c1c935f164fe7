"""Prompts whose token count is known before any server sees them, the same for every server.

A prompt is a chain of words that are one token each with their leading space. A byte-level tokenizer cuts text at those
spaces, so a chain of n such words is n tokens wherever it stands and whatever it is joined to; no server can save or lose
tokens by cutting it differently, and two prompts with the same first n words share exactly n tokens.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

_WORD = re.compile(r"Ġ[a-z]{4,10}")  # Ġ stands for a leading space in byte-level vocabularies


class Prompts(Protocol):
    """What makes the text of a workload."""

    def text(self, tokens: int, *key: object) -> str:
        """Text of exactly ``tokens`` tokens; the same for the same key, and unlike that of any other."""

    def count(self, text: str) -> int:
        """Tokens of ``text``, without any that a server puts before it."""


class WordPrompts:
    """Random single-token words of one tokenizer.

    Raises:
        ValueError: the tokenizer has too few such words, because it is not a byte-level one.
    """

    def __init__(self, tokenizer: Tokenizer, least_words: int = 1000) -> None:
        self._tokenizer = tokenizer
        self._words = sorted(word[1:] for word in tokenizer.get_vocab() if _WORD.fullmatch(word))
        if len(self._words) < least_words:
            raise ValueError(
                f"the tokenizer has {len(self._words)} lower-case words of one token, {least_words} are needed"
            )

    @classmethod
    def of_model(cls, directory: Path) -> WordPrompts:
        """For the model in ``directory``."""
        return cls(Tokenizer.from_file(str(directory / "tokenizer.json")))

    def text(self, tokens: int, *key: object) -> str:
        """See :class:`Prompts`."""
        chooser = random.Random("/".join(map(str, key)))  # noqa: S311 -- reproducible, not secret
        text = "".join(f" {word}" for word in chooser.choices(self._words, k=tokens))
        counted = self.count(text)
        if counted != tokens:
            raise ValueError(f"{tokens} words became {counted} tokens")
        return text

    def count(self, text: str) -> int:
        """See :class:`Prompts`."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)
