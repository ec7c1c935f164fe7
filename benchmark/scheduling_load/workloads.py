"""The loads by name. Everything is drawn from the seed, the round and the name, so that every arm gets the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from twin_parts import mooncake
from twin_parts.prompts import Prompts

from scheduling_load.asks import HEAVY, LIGHT, Ask, Lengths, limit_of, poisson

MIXED = ("mixed_0.8", "mixed_1.2")
FLOOD, TRACE, CLIENTS = "flood", "trace", "clients"
TIGHT, TIGHT_EARLY = TIGHTS = ("tight", "tight_early")
NAMES = (*MIXED, FLOOD, CLIENTS, TRACE, *TIGHTS)

PROMPTS = Lengths(64, 1.0, 4, 512)
ANSWERS = Lengths(64, 1.0, 4, 384)
SHARED = 0.3
PREFIXES, PREFIX_TOKENS = 4, 192

HOT_QUESTIONS = Lengths(16, 0.5, 4, 64)
HOT_ANSWERS = Lengths(32, 0.7, 4, 128)
COLD_PROMPTS = Lengths(128, 0.5, 32, 512)
COLD_SHARE = 0.1

HEAVY_PROMPTS, HEAVY_ANSWERS = Lengths(96, 0.5, 16, 256), Lengths(192, 0.4, 64, 384)
LIGHT_PROMPTS, LIGHT_ANSWERS = Lengths(32, 0.5, 8, 128), Lengths(32, 0.5, 8, 64)
LIGHT_CLIENTS, LIGHT_AT_ONCE, LIGHT_EVERY_S = 3, 2, 2.5

TIGHT_PROMPTS, TIGHT_ANSWERS = Lengths(110, 0.4, 60, 220), Lengths(220, 0.6, 80, 420)

Key = Sequence[object]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the requests of one load in one round.

    Attributes:
        prompts: what makes text.
        key: seed, round and name.
    """

    prompts: Prompts
    key: Key

    @property
    def rng(self) -> np.random.Generator:
        """A new generator of this key, always the same."""
        return np.random.default_rng(list("/".join(map(str, self.key)).encode()))

    def text(self, tokens: int, *what: object) -> str:
        """Text of ``tokens`` tokens, the same for the same ``what``."""
        return self.prompts.text(int(tokens), *self.key, *what) if tokens else ""

    def asks(
        self,
        rng: np.random.Generator,
        at_s: Sequence[float] | np.ndarray,
        lengths: tuple[Lengths, Lengths],
        kind: str,
        *,
        hidden: float = 0.5,
        room: float = 2.0,
        prefix: tuple[str, int] = ("", 0),
    ) -> list[Ask]:
        """Requests at ``at_s``, all behind ``prefix`` (text and tokens).

        A share ``hidden`` of them ends before limits with ``room``, see :func:`~scheduling_load.asks.limit_of`.
        """
        count = len(at_s)
        own, output = (one.draw(rng, count).tolist() for one in lengths)
        ends = (rng.random(count) < hidden).tolist()
        return [
            Ask(
                float(at_s[i]),
                prefix[0] + self.text(own[i], kind, i),
                prefix[1] + own[i],
                output[i],
                limit_of(output[i], room) if ends[i] else output[i],
                ends[i],
                kind,
            )
            for i in range(count)
        ]

    def mixed(self, count: int, per_s: float) -> list[Ask]:
        """Mixed lengths; :data:`SHARED` of the requests begin with one of :data:`PREFIXES` prefixes."""
        rng = self.rng
        asks = self.asks(rng, poisson(rng, count, per_s), (PROMPTS, ANSWERS), "own")
        group = rng.integers(0, PREFIXES, count).tolist()
        shares = (rng.random(count) < SHARED).tolist()
        return [
            self._behind(ask, f"shared_{which}") if shared else ask
            for ask, which, shared in zip(asks, group, shares, strict=True)
        ]

    def _behind(self, ask: Ask, prefix: str) -> Ask:
        prompt = self.text(PREFIX_TOKENS, prefix) + ask.prompt
        return replace(ask, prompt=prompt, prompt_tokens=ask.prompt_tokens + PREFIX_TOKENS, kind=prefix)

    def flood(self, count: int, per_s: float) -> list[Ask]:
        """Many on one prefix, and every so often a ``cold`` one that shares nothing."""
        rng, seconds = self.rng, count / per_s
        cold = max(2, round(COLD_SHARE * count))
        hot = self.asks(
            rng,
            poisson(rng, count - cold, (count - cold) / seconds),
            (HOT_QUESTIONS, HOT_ANSWERS),
            "hot",
            prefix=(self.text(PREFIX_TOKENS, "prefix"), PREFIX_TOKENS),
        )
        times = (np.arange(cold) + 0.5) * seconds / cold
        return in_order([*hot, *self.asks(rng, times, (COLD_PROMPTS, HOT_ANSWERS), "cold")])

    def clients(self, seconds: float, heavy_tokens: float) -> list[Ask]:
        """A heavy client that asks for about ``heavy_tokens`` at once, and light ones that ask a little now and then."""
        rng = self.rng
        count = max(2, round(heavy_tokens / float(HEAVY_ANSWERS.draw(self.rng, 4096).mean())))
        asks = self.asks(rng, [0.0] * count, (HEAVY_PROMPTS, HEAVY_ANSWERS), HEAVY)
        # The last is sent so early that it can be served in the time in which service is compared.
        last_s = max(seconds - LIGHT_EVERY_S, LIGHT_EVERY_S)
        bursts = max(1, int(last_s / LIGHT_EVERY_S))
        for client in range(LIGHT_CLIENTS):
            shift = (client + 1) / (LIGHT_CLIENTS + 1)
            times = np.repeat((np.arange(bursts) + shift) * last_s / bursts, LIGHT_AT_ONCE)
            asks += self.asks(rng, times, (LIGHT_PROMPTS, LIGHT_ANSWERS), f"{LIGHT}_{client}")
        return in_order(asks)

    def tight(self, count: int, end_token_id: int, *, early: bool = False) -> list[Ask]:
        """For a closed loop; answers run to their limits, and the server cannot know. Half of them do not if ``early``."""
        lengths = (TIGHT_PROMPTS, TIGHT_ANSWERS)
        asks = self.asks(self.rng, [0.0] * count, lengths, "tight", hidden=0.5 if early else 0.0)
        return [ask if ask.hidden else replace(ask, never_token_id=end_token_id) for ask in asks]

    def trace(self, rows: Sequence[dict[str, object]], scale: mooncake.Scale, *, limit: int) -> list[Ask]:
        """The replay of ``rows``; every answer ends before one and the same ``limit``."""
        asks = []
        for one in mooncake.scaled(rows, scale):
            text = mooncake.prompt(one, scale.block_tokens, self.prompts, self.key)
            # A digit and the end of the text at the least.
            output = max(2, one.output_tokens)
            asks.append(Ask(one.start_s, text, one.input_tokens, output, limit, hidden=True, kind=TRACE))
        return asks


def in_order(asks: Sequence[Ask]) -> list[Ask]:
    """``asks`` in order of arrival."""
    return sorted(asks, key=lambda ask: ask.at_s)


def tight_pool_tokens(running: int, share: float) -> int:
    """KV slots that are ``share`` of what ``running`` requests of the load need, each at its end; enough for any one."""
    rng = np.random.default_rng(0)
    mean = TIGHT_PROMPTS.draw(rng, 4096).mean() + TIGHT_ANSWERS.draw(rng, 4096).mean()
    largest = TIGHT_PROMPTS.most + TIGHT_ANSWERS.most
    return max(round(share * running * float(mean)), largest + 64)
