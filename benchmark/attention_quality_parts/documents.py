"""Contexts of running text in which two sentences with codes are hidden, the text that follows, and the questions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

FOLLOWING_TOKENS = 64
SHALLOW, DEEP = 0.10, 0.85
"""Shares of the context between which the sentences lie."""
DIGITS = 5
_GOLDEN = 0.6180339887498949
_CITIES = [
    "Rotterdam",
    "Lisbon",
    "Nairobi",
    "Oslo",
    "Quito",
    "Dublin",
    "Prague",
    "Manila",
    "Havana",
    "Cairo",
    "Vienna",
    "Zurich",
]
_THINGS = ["lighthouse", "bakery", "museum", "bridge", "harbour", "chapel", "orchard", "theatre"]
# A sentence; what is asked of it, which ends where the sentence's code begins.
_FIRST = (
    " The secret access code of {0} is {1}.",
    "\nQuestion: What is the secret access code of {0}?\nAnswer: The secret access code of {0} is",
)
_SECOND = (
    " The inventory number of the old {0} is {1}.",
    "\nQuestion: What is the inventory number of the old {0}?\nAnswer: The inventory number of the old {0} is",
)

Indices = NDArray[np.int64]


class TextError(ValueError):
    """The text cannot be cut as was asked."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answer.

    Attributes:
        ids: of both.
        digits: places within ``ids`` of the answer's digits.
    """

    ids: tuple[int, ...]
    digits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One context.

    Attributes:
        context: token ids.
        following: ids of the text after it, one more than is computed.
        questions: of the two sentences.
        depths: where each sentence begins, as a share of the context.
    """

    context: Indices
    following: Indices
    questions: tuple[Question, Question]
    depths: tuple[float, float]


def depths_of(index: int, offset: float) -> tuple[float, float]:
    """Depths of the two sentences of document ``index``, evenly spread however many documents there are.

    Args:
        index: of the document.
        offset: in [0, 1), from the seed.
    """
    first = (offset + index * _GOLDEN) % 1.0
    # The other is a third of the range away, now before the first and now behind it.
    second = (first + 1 / 3) % 1.0
    return SHALLOW + (DEEP - SHALLOW) * first, SHALLOW + (DEEP - SHALLOW) * second


def hidden_in(
    text: Sequence[int], sentences: Sequence[Sequence[int]], depths: Sequence[float], tokens: int
) -> list[int]:
    """``text`` with each of the sentences put in whole so that it begins at its depth of ``tokens``.

    The text is as much shorter than ``tokens`` as the sentences are long.

    Raises:
        TextError: two sentences would overlap, or one goes beyond the end.
    """
    result = list(text)
    end = 0
    for depth, sentence in sorted(zip(depths, sentences, strict=True), key=lambda pair: pair[0]):
        at = round(depth * tokens)
        if at < end or at > len(result):
            raise TextError(f"no room for a sentence at {depth:.2f} of {tokens} tokens")
        result[at:at] = sentence
        end = at + len(sentence)
    if len(result) != tokens:
        raise TextError(f"{len(text)} tokens of text and the sentences make {len(result)}, not {tokens}")
    return result


def question_of(tokenizer: Tokenizer, asked: str, code: str) -> Question:
    """A question with its answer.

    Raises:
        TextError: the tokenizer does not write each digit as a token.
    """
    question = tokenizer.encode(asked, add_special_tokens=False).ids
    answer = tokenizer.encode(f" {code}", add_special_tokens=False).ids
    digits = [at for at, token in enumerate(answer) if tokenizer.decode([token]).strip()]
    if len(digits) != len(code):
        raise TextError(f"{len(digits)} tokens for the digits of {code}")
    return Question((*question, *answer), tuple(len(question) + at for at in digits))


def cut(tokenizer: Tokenizer, ids: Sequence[int], tokens: int, count: int, seed: int) -> list[Document]:
    """``count`` contexts of ``tokens`` tokens each, which do not overlap in the text.

    Raises:
        TextError: the text is too short.
    """
    need = tokens + FOLLOWING_TOKENS + 1
    if len(ids) < need * count:
        raise TextError(
            f"the text has {len(ids)} tokens; {count} contexts of {tokens} need {need * count}, "
            "or fewer --contexts"
        )
    chooser = random.Random(f"{seed}/{tokens}")  # noqa: S311 -- reproducible, not secret
    offset, span = chooser.random(), len(ids) // count
    documents = []
    for index in range(count):
        depths = depths_of(index, offset)
        names = chooser.choice(_CITIES), chooser.choice(_THINGS)
        codes = ["".join(chooser.choice("0123456789") for _ in range(DIGITS)) for _ in names]
        sentences, questions = [], []
        for (told, asked), name, code in zip((_FIRST, _SECOND), names, codes, strict=True):
            sentences.append(tokenizer.encode(told.format(name, code), add_special_tokens=False).ids)
            questions.append(question_of(tokenizer, asked.format(name), code))
        begin = index * span + chooser.randrange(span - need + 1)
        own = tokens - sum(map(len, sentences))
        context = hidden_in(ids[begin : begin + own], sentences, depths, tokens)
        following = ids[begin + own : begin + own + FOLLOWING_TOKENS + 1]
        documents.append(
            Document(np.array(context), np.array(following), (questions[0], questions[1]), depths)
        )
    return documents
