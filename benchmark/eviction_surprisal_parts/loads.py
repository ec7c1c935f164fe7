"""Requests made of the texts: which return, and when.

Drawn without a look at what a text says, so that surprisal can tell of it by the kind of a text and its place in a prompt only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eviction_surprisal_parts.texts import Ids, Texts

CHAT, EXAMPLES, SCHEMAS, DOCUMENTS, MIX = "chat", "examples", "schemas", "documents", "mix"
KINDS = (CHAT, EXAMPLES, SCHEMAS, DOCUMENTS)
LOADS = (MIX, *KINDS)

SPAN_S = 3600.0
THINK_S, THINK_SIGMA = 60.0, 0.8
"""Median time from one turn to the next, and the standard deviation of its logarithm."""
CONTINUING, MEAN_MORE_TURNS, MOST_TURNS = 0.35, 2.5, 5
"""Of chats: the share that goes on, and by how many turns, geometric."""
SECOND_TURN = 0.5
"""Of the chats of two turns, the share that goes on."""
SEVERAL, MEAN_MORE_QUESTIONS = 0.4, 2.5
"""Of documents: the share of which more than one question is asked, and how many more."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: when it is sent, its prompt, and the answer that it leaves in the cache behind it."""

    at_s: float
    prompt: Ids
    answer: Ids = ()


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of each kind begin within the span: chats of problems, and requests behind examples and schemas."""

    chats: int = 56
    examples: int = 300
    schemas: int = 250


def draw(load: str, texts: Texts, answers: tuple[Ids, ...], sizes: Sizes, key: tuple[int, int]) -> list[Ask]:
    """The requests of a load in order of time.

    Args:
        load: one of ``LOADS``; a kind alone is the same as within the mix.
        texts: what they are made of.
        answers: to the first turns of ``texts.chats``.
        sizes: how many.
        key: seed and number of the draw.
    """
    makers = {
        CHAT: lambda rng: [*_problems(texts, sizes, rng), *_two_turns(texts, answers, rng)],
        EXAMPLES: lambda rng: _behind_examples(texts, sizes, rng),
        SCHEMAS: lambda rng: _behind_schemas(texts, sizes, rng),
        DOCUMENTS: lambda rng: _of_documents(texts, rng),
    }
    made: list[Ask] = []
    for place, kind in enumerate(KINDS):
        if load in (kind, MIX):
            made += makers[kind](np.random.default_rng((*key, place)))
    return sorted((ask for ask in made if ask.at_s < SPAN_S), key=lambda ask: ask.at_s)


def _times(rng: np.random.Generator, turns: int) -> list[float]:
    pauses = np.exp(math.log(THINK_S) + THINK_SIGMA * rng.standard_normal(turns - 1))
    times: list[float] = (rng.uniform(0.0, SPAN_S) + np.concatenate([[0.0], np.cumsum(pauses)])).tolist()
    return times


def _more(rng: np.random.Generator, share: float, mean: float) -> int:
    return int(rng.geometric(1.0 / mean)) if rng.random() < share else 0


def _problems(texts: Texts, sizes: Sizes, rng: np.random.Generator) -> list[Ask]:
    made = []
    for session in range(sizes.chats):
        turns = 1 + min(_more(rng, CONTINUING, MEAN_MORE_TURNS), MOST_TURNS - 1)
        said = texts.system
        for turn, at_s in enumerate(_times(rng, turns)):
            # The first questions of two sessions differ, whatever comes later.
            one = texts.problems[(session + turn * sizes.chats) % len(texts.problems)]
            made.append(Ask(at_s, said + one.question, one.answer))
            said = said + one.question + one.answer
    return made


def _two_turns(texts: Texts, answers: tuple[Ids, ...], rng: np.random.Generator) -> list[Ask]:
    made = []
    for (first, second), answer in zip(texts.chats, answers, strict=True):
        begin_s, next_s = _times(rng, 2)
        said = texts.system + first
        made.append(Ask(begin_s, said, answer))
        if rng.random() < SECOND_TURN:
            made.append(Ask(next_s, said + answer + second))
    return made


def _popular(rng: np.random.Generator, count: int, power: float, requests: int) -> list[int]:
    """Which of ``count`` each request is about; who is popular is drawn too."""
    weights = np.arange(1, count + 1) ** -power
    chosen: list[int] = rng.permutation(count)[
        rng.choice(count, requests, p=weights / weights.sum())
    ].tolist()
    return chosen


def _behind_examples(texts: Texts, sizes: Sizes, rng: np.random.Generator) -> list[Ask]:
    made = []
    for which in _popular(rng, len(texts.examples), 1.0, sizes.examples):
        prompt, problems = texts.examples[which].prompt, texts.examples[which].problems
        one = problems[int(rng.integers(len(problems)))]
        made.append(Ask(float(rng.uniform(0.0, SPAN_S)), prompt + one.question, one.number))
    return made


def _behind_schemas(texts: Texts, sizes: Sizes, rng: np.random.Generator) -> list[Ask]:
    made = []
    for which in _popular(rng, len(texts.schemas), 0.8, sizes.schemas):
        wanted = texts.wanted[int(rng.integers(len(texts.wanted)))]
        made.append(Ask(float(rng.uniform(0.0, SPAN_S)), texts.schemas[which] + wanted))
    return made


def _of_documents(texts: Texts, rng: np.random.Generator) -> list[Ask]:
    made = []
    for document in texts.documents:
        questions = min(1 + _more(rng, SEVERAL, MEAN_MORE_QUESTIONS), len(texts.asked))
        # Always the same ones first: whatever is asked has to be measured.
        asked = texts.asked[:questions]
        made += [Ask(at_s, document + one) for one, at_s in zip(asked, _times(rng, questions), strict=True)]
    return made
