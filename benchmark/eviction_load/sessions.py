"""What is asked: sessions of turns, each of which sends all that was said before, and the loads that are made of them.

A load is first drawn in a span of 1, of which a machine then makes seconds; so all arms get the same requests at the same
times, and a faster machine gets them sooner. Prompts are named pieces with token counts: a server gets token ids for
them, the simulation only needs to know which are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scheduling_load.asks import Lengths

from eviction_load.forms import FORMS, MOST_TOKENS, Form

CHAT, STRUCTURED, TRACE = "chat", "structured", "trace"
NAMES = (CHAT, STRUCTURED, TRACE)
ONE_SHOT, CONTINUING = "one_shot", "continuing"

FIRST, FOLLOWING = Lengths(160, 0.6, 48, 480), Lengths(32, 0.6, 8, 128)
"""What a first turn of a chat adds, and what another one."""
ANSWERS = Lengths(20, 0.4, 8, 48)
"""To the turns of a chat."""
SYSTEM, QUESTIONS = Lengths(320, 0.4, 128, 640), Lengths(48, 0.7, 12, 192)
"""Of structured generation."""


@dataclass(frozen=True, slots=True)
class Piece:
    """So many tokens of a text; equal keys mean equal text from the beginning on.

    Attributes:
        key: name of the text.
        tokens: how many of its first tokens.
    """

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session.

    Attributes:
        due: when it is sent, unless the answer before it is not there yet.
        new: what it adds to all that was said before.
        output_tokens: tokens of the answer; the most that a form may take.
        form: what the answer has to look like; as long as was asked for without one.
    """

    due: float
    new: tuple[Piece, ...]
    output_tokens: int
    form: Form | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order, with a name of their own and a kind."""

    name: str
    kind: str
    turns: tuple[Turn, ...]

    def answer(self, turn: int) -> Piece:
        """The place of an answer in the prompts after it."""
        return Piece(f"{self.name}/answer/{turn}", self.turns[turn].output_tokens)

    def prompt(self, turn: int) -> tuple[Piece, ...]:
        """Everything said before, the answers too, and what is new."""
        pieces: list[Piece] = []
        for number in range(turn):
            pieces += [*self.turns[number].new, self.answer(number)]
        return (*pieces, *self.turns[turn].new)

    def prompt_tokens(self, turn: int) -> int:
        """Length of that."""
        return sum(piece.tokens for piece in self.prompt(turn))


@dataclass(frozen=True, slots=True)
class Chat:
    """Multi-turn chat: some sessions go on, the others ask once, and the first turns of both look alike.

    Attributes:
        sessions: that begin within the span.
        continuing: share that goes on.
        mean_turns: mean turns of a session that goes on, at least 2; geometric.
        think: median time from one turn to the next, in spans; log-normal.
        think_sigma: standard deviation of its logarithm.
        system_tokens: of the beginning that all share.
        most_tokens: a session ends before a prompt and its answer are longer.
    """

    sessions: int = 240
    continuing: float = 0.3
    mean_turns: float = 6.0
    think: float = 0.1
    think_sigma: float = 0.7
    system_tokens: int = 32
    most_tokens: int = 1024

    def draw(self, key: Sequence[object]) -> list[Session]:
        """Its sessions; turns behind the end of the span are not asked."""
        rng = generator(key)
        begins = np.sort(rng.uniform(0.0, 1.0, self.sessions)).tolist()
        goes_on = (rng.random(self.sessions) < self.continuing).tolist()
        made = []
        for number, (begin, on) in enumerate(zip(begins, goes_on, strict=True)):
            turns = 1 if not on else 1 + int(rng.geometric(1.0 / (self.mean_turns - 1.0)))
            made.append(self._session(rng, number, begin, turns, CONTINUING if on else ONE_SHOT))
        return made

    def _session(self, rng: np.random.Generator, number: int, begin: float, turns: int, kind: str) -> Session:
        name = f"chat/{number}"
        pauses = np.exp(math.log(self.think) + self.think_sigma * rng.standard_normal(turns - 1))
        times = begin + np.concatenate([[0.0], np.cumsum(pauses)])
        new = np.concatenate([FIRST.draw(rng, 1), FOLLOWING.draw(rng, turns - 1)]).tolist()
        answers = ANSWERS.draw(rng, turns).tolist()
        made: list[Turn] = []
        length = self.system_tokens
        for at, due in enumerate(times.tolist()):
            length += new[at] + answers[at]
            if at and (due > 1.0 or length > self.most_tokens):
                break
            system = () if at else (Piece("system", self.system_tokens),)
            made.append(Turn(due, (*system, Piece(f"{name}/{at}", new[at])), answers[at]))
        return Session(name, kind, tuple(made))


@dataclass(frozen=True, slots=True)
class Structured:
    """Questions behind system prompts of unequal popularity, answered in a fixed form.

    Attributes:
        requests: of the span.
        systems: number of system prompts, each with a form of its own.
        zipf: popularity falls with this power of the rank.
    """

    requests: int = 260
    systems: int = 30
    zipf: float = 0.9

    def draw(self, key: Sequence[object]) -> list[Session]:
        """Its sessions, of one turn each."""
        rng = generator(key)
        lengths = SYSTEM.draw(rng, self.systems).tolist()
        weights = np.arange(1, self.systems + 1) ** -self.zipf
        which = rng.choice(self.systems, self.requests, p=weights / weights.sum()).tolist()
        times = np.sort(rng.uniform(0.0, 1.0, self.requests)).tolist()
        asked = QUESTIONS.draw(rng, self.requests).tolist()
        made = []
        for number, (system, due, tokens) in enumerate(zip(which, times, asked, strict=True)):
            name = f"structured/{number}"
            new = (Piece(f"system/{system}", lengths[system]), Piece(name, tokens))
            form = FORMS[system % len(FORMS)]
            made.append(Session(name, f"system_{system}", (Turn(due, new, MOST_TOKENS, form),)))
        return made


def generator(key: Sequence[object]) -> np.random.Generator:
    """A new generator of ``key``, always the same."""
    return np.random.default_rng(list("/".join(map(str, key)).encode()))


def stretched(sessions: Sequence[Session], seconds: float) -> list[Session]:
    """The same with a span of ``seconds``."""
    return _turned(sessions, lambda turn: replace(turn, due=turn.due * seconds))


def _turned(sessions: Sequence[Session], change: Callable[[Turn], Turn]) -> list[Session]:
    return [replace(session, turns=tuple(map(change, session.turns))) for session in sessions]


def in_order(sessions: Sequence[Session]) -> list[tuple[Session, int]]:
    """All requests by the time at which they are due."""
    asked = [(session, turn) for session in sessions for turn in range(len(session.turns))]
    return sorted(asked, key=lambda one: one[0].turns[one[1]].due)


def output_tokens(sessions: Sequence[Session]) -> int:
    """Tokens of all answers."""
    return sum(turn.output_tokens for session in sessions for turn in session.turns)
