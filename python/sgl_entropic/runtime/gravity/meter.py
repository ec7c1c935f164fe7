"""Scores the hidden states of every sampling step; what the host learns travels with the step's readings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from sgl_entropic.config import GravityConfig
from sgl_entropic.errors import UnsupportedError
from sgl_entropic.runtime.gravity.mean import MeanVector
from sgl_entropic.runtime.gravity.ring import Ring
from sgl_entropic.runtime.gravity.settings import check_config, load_mean, settings_of
from sgl_entropic.runtime.step_context import StepContext
from sgl_entropic.trace.counters import Counters

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Meter:
    """Gravity of one scheduler process, taken from hidden states.

    Attributes:
        ring: the last states of every request.
        mean: what is subtracted from them.
        counters: what was scored.
    """

    ring: Ring
    mean: MeanVector
    counters: Counters

    @classmethod
    def of(
        cls,
        config: GravityConfig,
        req_to_token: torch.Tensor,
        hidden_size: int,
        counters: Counters,
        *,
        compiled: bool,
    ) -> Meter:
        """A meter for every row of SGLang's request pool.

        Raises:
            ConfigError: the mean vector is not one of this model.
        """
        check_config(config)
        device = req_to_token.device
        ring = Ring.allocate(
            req_to_token.shape[0], hidden_size, settings_of(config), device, compiled=compiled
        )
        if config.mean_path is not None:
            mean = MeanVector(torch.from_numpy(load_mean(config.mean_path, hidden_size)).to(device))
        else:
            mean = MeanVector(torch.zeros(hidden_size, device=device), config.mean_rows)
        logger.info("Gravity: %d rows of hidden states, %.1f MiB.", len(ring.seen), ring.nbytes / 2**20)
        return cls(ring, mean, counters)

    def score(
        self, hidden: torch.Tensor | None, forward_batch: Any, rows: int, context: StepContext | None
    ) -> torch.Tensor:
        """Gravity and energy ``[2, B]`` of a step; 0 and NaN while the mean is being learnt.

        Args:
            hidden: SGLang's hidden states of the step: of the rows that are sampled from, or of all new tokens.
            forward_batch: of the step.
            rows: ``B``.
            context: host facts of the step when it was an extend.
        """
        if hidden is None:
            # Said at once rather than served without gravity: the server arguments ask for them.
            raise UnsupportedError(
                "--entropic-gravity on: this model hands out no hidden states; accepted: off"
            )
        if context is not None and hidden.shape[0] != rows:
            hidden = hidden[forward_batch.extend_seq_lens[:rows].cumsum(0) - 1]
        hidden = hidden[:rows]
        places = forward_batch.req_pool_indices[:rows]
        if not self.mean.known:
            self.mean.learn(hidden)
            if self.mean.known:
                logger.info("Gravity: the mean of %d hidden states is learnt and stays.", self.mean.rows)
            nothing = torch.zeros(2, rows, device=hidden.device)
            nothing[1] = float("nan")
            return nothing
        if context is not None:
            self.ring.restart(places, range(rows - context.decoding_rows))
        scores = self.ring.score(hidden, self.mean.values, places)
        if context is not None:
            # The state after a chunk that is not a prompt's last is of no token of the answer.
            self.ring.restart(
                places, [r for r, fact in enumerate(context.rows) if fact.next_token is not None]
            )
        self.counters.gravity_rows += rows
        return scores

    def state(self) -> dict[str, Any]:
        """For ``/server_info``."""
        return {
            "ring_bytes": self.ring.nbytes,
            "compiled": self.ring.compiled,
            "mean_rows_wanted": self.mean.wanted,
            "mean_rows_learnt": self.mean.rows,
        }


_installed: Meter | None = None


def install(meter: Meter | None) -> None:
    """Make ``meter`` the one of this process; ``None`` takes it away."""
    global _installed  # noqa: PLW0603 -- one scheduler a process; SGLang's hooks carry no state of their own
    _installed = meter


def installed() -> Meter | None:
    """The process's meter; ``None`` when gravity is off or is not taken from hidden states, and during warm-up."""
    return _installed
