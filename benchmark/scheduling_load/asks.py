"""One request of a load, with an answer whose length is known beforehand, to the server or to us only.

Half of the answers are as long as their limit says (``ignore_eos``). The others end before it, at a length that only the
client knows: a regular expression asks for so many digits, of which the tokenizer makes one token each, and the end of
the text is the last token. So an answer ends early as in real traffic, yet with the same number of tokens at every
server; the server knows that a grammar ends the answer, and nothing it does with the pattern tells a scheduler when.

Where memory is scarce, those that run to their limits do so although the server cannot count on it: the end of the text is biased
out in place of ``ignore_eos``, which would tell SGLang that the whole limit is going to be needed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

HEAVY, LIGHT = "heavy", "light"
"""Kinds that stand for clients; the others are of no client in particular."""
_MANY_DIGITS = re.compile(r"\W?[0-9]{2,}")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal token counts within limits.

    Attributes:
        median: before the limits.
        sigma: standard deviation of the logarithm.
        least: shorter ones become as long.
        most: longer ones are cut.
    """

    median: float
    sigma: float
    least: int
    most: int

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """``count`` lengths."""
        drawn = np.exp(math.log(self.median) + self.sigma * rng.standard_normal(count))
        return np.clip(np.rint(drawn), self.least, self.most).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        at_s: when it is sent, from the beginning of the load; of no effect in a closed loop.
        prompt: text.
        prompt_tokens: tokens of ``prompt``.
        output_tokens: tokens of the answer, 2 or more where ``hidden``.
        most_new: the limit that the server is told; ``output_tokens`` unless ``hidden``.
        hidden: the answer ends before its limit.
        kind: what it stands for in its load, such as ``cold``.
        never_token_id: token that is biased out so that the answer runs to its limit; ``None`` says ``ignore_eos``.
    """

    at_s: float
    prompt: str
    prompt_tokens: int
    output_tokens: int
    most_new: int
    hidden: bool
    kind: str
    never_token_id: int | None = None

    @property
    def client_id(self) -> str | None:
        """Whose it is; ``None`` for requests of no client in particular."""
        return self.kind if self.kind.partition("_")[0] in (HEAVY, LIGHT) else None

    def body(self, rid: str, temperature: float) -> dict[str, Any]:
        """For ``/generate``."""
        sampling: dict[str, Any] = {"temperature": temperature, "max_new_tokens": self.most_new}
        if self.hidden:
            sampling["regex"] = f"[0-9]{{{self.output_tokens - 1}}}"
        elif self.never_token_id is None:
            sampling["ignore_eos"] = True
        else:
            sampling["logit_bias"] = {str(self.never_token_id): -100.0}
        if self.client_id is not None:
            # Of effect where scheduling is fair between clients.
            sampling["custom_params"] = {"entropic": {"client_id": self.client_id}}
        return {"rid": rid, "text": self.prompt, "sampling_params": sampling, "stream": True}


def limit_of(output_tokens: int, room: float = 2.0) -> int:
    """The limit of an answer that ends before it: the power of two at or above ``room`` times its length."""
    least = max(output_tokens + 1, math.ceil(room * output_tokens))
    return 1 << (least - 1).bit_length()


def poisson(rng: np.random.Generator, count: int, per_s: float) -> NDArray[np.float64]:
    """Times of ``count`` arrivals in ``count / per_s`` seconds: a Poisson process, given how many there were.

    With the count fixed, all loads are exactly as heavy as they say.
    """
    return np.sort(rng.uniform(0.0, count / per_s, count))


def require_digits(model: Path) -> None:
    """Make sure that a digit is one token and no token holds several.

    Raises:
        ValueError: it is not so; answers of hidden length would have another number of tokens.
    """
    vocabulary = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab()
    several = [word for word in vocabulary if _MANY_DIGITS.fullmatch(word)]
    if several or not all(str(digit) in vocabulary for digit in range(10)):
        raise ValueError(
            f"the tokenizer joins digits ({several[:3]}): hidden lengths need one token for each"
        )
