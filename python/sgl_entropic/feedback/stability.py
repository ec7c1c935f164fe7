"""Which gains keep the entropy loop stable: a bound on the varentropy, and the contraction factor from it.

With ``u = ln T`` and ``dH/du = V``, one step of the loop moves the error by the mean value theorem as::

    fixed    u' - u* = (u - u*) (1 - gain V(xi))            xi between u and u*
    newton   u' - u* = (u - u*) (1 - gain V(xi) / V(u))     close to u*: (u - u*) (1 - gain)

``u'`` acts on the very next token, so nothing else enters. ``docs/concepts/sampling.md`` derives it.

**Largest varentropy of V outcomes.** ``Var(-ln p)`` has the derivative ``L^2 + 2 L (1 + H) + 2 H`` by ``p``, with
``L = ln p``. At a maximum it is equal for all outcomes, a quadratic in ``L``: at most two different
probabilities. None is 0, where the derivative is infinite. With k outcomes sharing q and V - k the rest, the
variance ``q (1 - q) (ln(q / (1 - q)) + ln((V - k) / k))^2`` is largest for k = 1 and q >= 1/2. With
``q / (1 - q) = exp(2 t)`` and ``a = ln(V - 1) / 2``::

    V_max = max over t >= 0 of ((a + t) / cosh t)^2        where (a + t) tanh t = 1
          < a^2 + 1                                        by Cauchy and Schwarz, since cosh^2 t > 1 + t^2

Source of the bound: Reeb and Wolf, "Tight bound on relative entropy by entropy difference", 2015 (lemma on N_d).
"""

from __future__ import annotations

import math
from typing import Literal

from sgl_entropic.errors import ConfigError

Mode = Literal["fixed", "newton", "exact"]


def largest_varentropy(vocab_size: int) -> float:
    """Return the largest varentropy of any distribution over ``vocab_size`` outcomes, nats squared.

    To the precision of float64: the stationary point is the one root of an increasing function.
    """
    if _outcomes(vocab_size) == 1:
        return 0.0
    half_log = math.log(vocab_size - 1.0) / 2.0
    low, high = 0.0, 2.0  # (a + 2) tanh 2 > 1 for every a >= 0
    for _ in range(60):
        middle = (low + high) / 2.0
        if (half_log + middle) * math.tanh(middle) < 1.0:
            low = middle
        else:
            high = middle
    return ((half_log + low) / math.cosh(low)) ** 2


def contraction_factor(mode: Mode, gain: float, vocab_size: int) -> float:
    """Return by how much the steepest distribution multiplies an error in one step; below 1 it shrinks.

    ``fixed``: ``|1 - gain V|`` at the largest V. With a positive gain and below 1 there, it is below 1 for every V
    in (0, V_max], and the loop converges from any start (slowly where V is small). ``newton``: ``|1 - gain|``,
    close to the target only. ``exact``: 0.
    """
    if mode == "exact":
        return 0.0
    return abs(1.0 - gain * (largest_varentropy(vocab_size) if mode == "fixed" else 1.0))


def largest_gain(mode: Mode, vocab_size: int) -> float:
    """Return the gain from which on the loop need not converge: stable is ``0 < gain < largest_gain``."""
    if mode == "exact" or (mode == "fixed" and vocab_size == 1):
        return math.inf
    return 2.0 / largest_varentropy(vocab_size) if mode == "fixed" else 2.0


def require_stable(mode: Mode, gain: float, vocab_size: int) -> None:
    """Refuse a gain that does not shrink every error; ``exact`` has no gain to refuse.

    Raises:
        ConfigError: (a ``ValueError``) names the knob, its value, the contraction factor and what is accepted.
    """
    if mode == "exact" or 0.0 < gain < largest_gain(mode, vocab_size):
        return
    raise ConfigError(
        f"sampling.gain is {gain:g}: with mode {mode!r} and a vocabulary of {vocab_size} tokens one step may "
        f"multiply the error by {contraction_factor(mode, gain, vocab_size):.4g} (the contraction factor), which "
        f"has to be below 1. Accepted: 0 < gain < {largest_gain(mode, vocab_size):.4g}"
    )


def _outcomes(vocab_size: int) -> int:
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, not {vocab_size}")
    return vocab_size
