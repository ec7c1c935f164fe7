"""The texts as token ids: questions with answers, chats of two turns, schemas and documents, as a chat model is given them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

Ids = tuple[int, ...]

SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
EXAMPLES = "<|im_start|>system\nSolve the problem. Say the number alone. Examples:\n"
SCHEMA = "<|im_start|>system\nYou answer with one JSON document and nothing else. It has to be valid under this schema:\n"
DOCUMENT = "<|im_start|>system\nAnswer from the text alone.\n"
CLOSED = "<|im_end|>\n"
ANSWERS = "<|im_end|>\n<|im_start|>assistant\n"
ASKED = (
    "Summarise the text in one sentence.",
    "Which persons are named?",
    "What is the main subject?",
    "Which year is named first, and what happened in it?",
    "Name one place that the text speaks of.",
)
"""Of a document."""
WANTED = (
    "Make one up.",
    "Give a short example.",
    "Leave out what is not required.",
)
"""Of a schema."""
ANSWER_TOKENS, TURN_TOKENS, SCHEMA_TOKENS, DOCUMENT_TOKENS = 40, 64, 192, 256
"""Longer ones are cut; longer problems are left out."""
PROMPTS, PAIRS = 10, 10
"""Prompts with examples, and questions behind each."""
MOST_EXAMPLES = 4
SCHEMAS = 48


@dataclass(frozen=True, slots=True)
class Problem:
    """A question as a turn of a user, its answer as that of the model, and the answer's number alone."""

    question: Ids
    answer: Ids
    number: Ids


@dataclass(frozen=True, slots=True)
class Examples:
    """A prompt with examples, and the problems that are asked behind it."""

    prompt: Ids
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """All that requests are made of.

    Attributes:
        system: what all chats begin with.
        problems: of the chats.
        chats: first and second turn of a user.
        examples: prompts with examples.
        schemas: an instruction with a schema; all begin alike.
        wanted: what may be asked of a schema.
        documents: an instruction with a text; all begin alike.
        asked: what may be asked of a document.
    """

    system: Ids
    problems: tuple[Problem, ...]
    chats: tuple[tuple[Ids, Ids], ...]
    examples: tuple[Examples, ...]
    schemas: tuple[Ids, ...]
    wanted: tuple[Ids, ...]
    documents: tuple[Ids, ...]
    asked: tuple[Ids, ...]


class TextsError(ValueError):
    """A file holds too little, or something else than is needed."""


class Reader:
    """Files to token ids.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, text: str, most: int | None = None) -> Ids:
        """The first ``most`` tokens of ``text``."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids[:most])

    def user(self, text: str, most: int | None = None) -> Ids:
        """A user's turn of the first ``most`` tokens of ``text``, up to where the model answers."""
        return self.ids("<|im_start|>user\n") + self.ids(text, most) + self.ids(ANSWERS)

    def texts(self, gsm8k: Path, mt_bench: Path, schemas: Path, text: Path, documents: int) -> Texts:
        """Everything.

        Args:
            gsm8k: JSON lines of ``question`` and ``answer``.
            mt_bench: JSON lines of ``turns``.
            schemas: JSON lines of ``schema``.
            text: plain text.
            documents: how many to cut from it.

        Raises:
            TextsError: see there.
            OSError: a file cannot be read.
        """
        short = [
            row for row in rows(gsm8k, "question", "answer") if len(self.ids(row["question"])) <= TURN_TOKENS
        ]
        problems = [self._problem(row) for row in short]
        examples, chats = self._examples(problems)
        closed = self.ids(CLOSED)
        begin, given = self.ids(DOCUMENT), self.ids(SCHEMA)
        words = self.ids(text.read_text())
        span = len(words) // documents
        if span < DOCUMENT_TOKENS:
            raise TextsError(f"{text.name}: {documents} documents of {DOCUMENT_TOKENS} tokens are needed")
        return Texts(
            self.ids(SYSTEM),
            chats,
            tuple(
                (self.user(row["turns"][0], TURN_TOKENS), self.user(row["turns"][1], TURN_TOKENS))
                for row in rows(mt_bench, "turns")
            ),
            examples,
            tuple(
                (*given, *self.ids(json.dumps(row["schema"]), SCHEMA_TOKENS), *closed)
                for row in rows(schemas, "schema")[:SCHEMAS]
            ),
            tuple(map(self.user, WANTED)),
            tuple(
                (*begin, *words[at * span : at * span + DOCUMENT_TOKENS], *closed) for at in range(documents)
            ),
            tuple(map(self.user, ASKED)),
        )

    def _problem(self, row: dict[str, Any]) -> Problem:
        number = row["answer"].rpartition("####")[2].strip()
        answer = self.ids(row["answer"], ANSWER_TOKENS)
        closed = self.ids(CLOSED)
        return Problem(self.user(row["question"]), answer + closed, self.ids(number) + closed)

    def _examples(self, problems: Sequence[Problem]) -> tuple[tuple[Examples, ...], tuple[Problem, ...]]:
        """The prompts, and the problems that are left for chats."""
        shown = PROMPTS * MOST_EXAMPLES
        left = len(problems) - shown
        if left < PAIRS:
            raise TextsError(f"{len(problems)} problems are too few, at least {shown + PAIRS} are needed")
        begin, closed, made = self.ids(EXAMPLES), self.ids(CLOSED), []
        for at in range(PROMPTS):
            own = problems[at * MOST_EXAMPLES : at * MOST_EXAMPLES + 2 + at % (MOST_EXAMPLES - 1)]
            prompt = (*begin, *(one for it in own for one in it.question + it.answer), *closed)
            asked = tuple(problems[shown + (at * PAIRS + place) % left] for place in range(PAIRS))
            made.append(Examples(prompt, asked))
        return tuple(made), tuple(problems[shown:])


def rows(path: Path, *fields: str) -> list[dict[str, Any]]:
    """The lines of ``path``.

    Raises:
        TextsError: there are none, or one lacks a field.
    """
    try:
        found = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except ValueError as error:
        raise TextsError(f"{path.name} has to hold JSON lines: {error}") from error
    if not found or any(field not in row for row in found for field in fields):
        raise TextsError(f"{path.name} has to hold JSON lines with {', '.join(fields)}")
    return found
