"""Entropy-stabilised sampling inside SGLang's sampler: state on the device, one step at a time, nothing waited for.

A request's state is the ``ln T`` of its next token, in a tensor with one place for every row of SGLang's request pool. It
is set when the request's prompt is sampled from (again after a retraction, then from what the host last heard), in the order
of the device's stream: a finished request's last, superfluous step has passed by then.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from sgl_entropic.entropy.row_statistics import row_statistics
from sgl_entropic.runtime.control import Control
from sgl_entropic.runtime.request_state import Steered, state_of
from sgl_entropic.runtime.slots import SlotStore
from sgl_entropic.sampling.min_p_control import MinPRows, solve_min_p
from sgl_entropic.sampling.target import auto_target_nats
from sgl_entropic.sampling.temperature_control import (
    EXACT,
    MODE_CODES,
    ControlRows,
    Solution,
    next_log_temperature,
    solve_log_temperature,
)
from sgl_entropic.trace.counters import Counters

_GREEDY_TOP_K = 1


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What the host knows of a step in which at least one request is steered; aligned with ``batch.reqs``.

    Attributes:
        controls: how each request is steered, if at all.
        begins: rows whose prompt is being computed, with the ``ln T`` to go on with, ``None`` at the first time, and the
            length of the request's own prompt.
    """

    controls: tuple[Control | None, ...]
    begins: tuple[tuple[int, float | None, int], ...]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The controls of a batch as tensors ``[B]``; they stay the same from step to step."""

    target: torch.Tensor
    gain: torch.Tensor
    mode: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    by_temperature: torch.Tensor
    by_min_p: torch.Tensor
    packed: torch.Tensor
    any_temperature: bool
    any_min_p: bool
    any_exact: bool
    any_feedback: bool


@dataclass(slots=True)
class Steering:
    """The state of all requests of one scheduler process.

    Attributes:
        state: ``[2, rows]`` float32: ``ln T`` of each request's next token, and the target that its own prompt gives.
        req_to_token: SGLang's table of KV slots.
        store: entropies of prompts, or ``None`` where they are not kept.
        counters: what was steered.
        solve: finds temperatures on the logits at hand.
        pending: facts of the step whose forward pass is about to begin.
    """

    state: torch.Tensor
    req_to_token: torch.Tensor
    store: SlotStore | None
    counters: Counters
    solve: Callable[[torch.Tensor, ControlRows, torch.Tensor], Solution] = solve_log_temperature
    pending: StepFacts | None = None
    _active: Step | None = None
    _columns: tuple[tuple[int, ...], tuple[Control | None, ...], _Columns] | None = None

    @classmethod
    def allocate(
        cls, req_to_token: torch.Tensor, store: SlotStore | None, counters: Counters, **more: Any
    ) -> Steering:
        """State for every row of SGLang's request pool."""
        rows = req_to_token.shape[0]
        state = torch.zeros(2, rows, dtype=torch.float32, device=req_to_token.device)
        return cls(state, req_to_token, store, counters, **more)

    @property
    def log_temperature(self) -> torch.Tensor:
        """``[rows]``, a view."""
        return self.state[0]

    @property
    def auto_target(self) -> torch.Tensor:
        """``[rows]``, a view."""
        return self.state[1]

    @contextmanager
    def step(self, facts: StepFacts, forward_batch: Any) -> Iterator[Step]:
        """Make the step known to the sampler for the duration of its call."""
        self._active = Step(self, facts, forward_batch, self.columns(facts.controls))
        try:
            yield self._active
        finally:
            self._active = None

    def active(self) -> Step | None:
        """The step that is being sampled, if a request in it is steered."""
        return self._active

    def columns(self, controls: tuple[Control | None, ...]) -> _Columns:
        """Tensors of ``controls``, kept while the batch stays the same."""
        key = tuple(map(id, controls))
        if self._columns is None or self._columns[0] != key:
            # The controls are kept with their ids, so that no other object can come by the same ones.
            self._columns = key, controls, _columns(controls, self.state.device)
        return self._columns[2]


@dataclass(slots=True)
class Step:
    """One sampling step; the sampler calls :meth:`steer` before it draws and :meth:`settle` after."""

    steering: Steering
    facts: StepFacts
    forward_batch: Any
    columns: _Columns
    readings: torch.Tensor | None = None
    _rows: ControlRows | None = None
    _used: torch.Tensor | None = None
    _saturated: torch.Tensor | None = None
    _cut: tuple[torch.Tensor, torch.Tensor] | None = None
    _places: torch.Tensor | None = field(default=None, repr=False)

    def own_copy(self, sampling_info: Any) -> Any:
        """A shallow copy of SGLang's sampling parameters: the batch keeps its own temperatures."""
        return copy.copy(sampling_info)

    def steer(self, logits: torch.Tensor, sampling_info: Any) -> None:
        """Put this step's temperatures and min-p thresholds into ``sampling_info``; rows not steered keep their bits.

        Args:
            logits: ``[B, V]`` after penalties, grammar mask, logit bias and custom processors, before the temperature.
            sampling_info: a copy that belongs to this step.
        """
        steering, columns = self.steering, self.columns
        count = logits.shape[0]
        self._places = places = self.forward_batch.req_pool_indices[:count]
        own = sampling_info.temperatures.view(-1)
        log_own = own.clamp(1e-30, 1e30).log()
        self._begin(own)
        free = sampling_info.top_ks != _GREEDY_TOP_K
        target = torch.where(columns.target.isnan(), steering.auto_target[places], columns.target)
        rows = self._rows = ControlRows(
            target,
            columns.gain,
            columns.mode,
            log_own + columns.low,
            log_own + columns.high,
            columns.by_temperature & free,
        )
        used = torch.where(rows.controlled, steering.log_temperature[places], log_own)
        saturated = torch.zeros_like(rows.controlled)
        if columns.any_exact:
            solution = steering.solve(logits, rows, log_own)
            exact = rows.controlled & (rows.mode == EXACT)
            used = torch.where(exact, solution.log_temperature, used)
            saturated = saturated | (exact & solution.saturated)
        self._used = used
        if columns.any_temperature:
            sampling_info.temperatures = torch.where(rows.controlled, used.exp(), own).view(-1, 1)
        if columns.any_min_p:
            cut = columns.by_min_p & free
            asked = MinPRows(target, columns.mode, torch.ones_like(target), cut)
            found = solve_min_p(logits / sampling_info.temperatures, asked, sampling_info.min_ps)
            # A request's own threshold stays the least.
            thresholds = torch.maximum(found.min_p, sampling_info.min_ps)
            sampling_info.min_ps = torch.where(cut, thresholds, sampling_info.min_ps)
            sampling_info.need_min_p_sampling = True
            saturated = saturated | (cut & found.saturated)
            unknown = float("nan")
            self._cut = (
                torch.where(cut, sampling_info.min_ps, unknown),
                torch.where(cut, found.entropy_nats, unknown),
            )
        self._saturated = saturated

    def fused(self, sampling_info: Any) -> tuple[torch.Tensor, ...] | None:
        """What a sampler needs that steers while it draws: controls, places, state, and room for the readings.

        ``None`` when a threshold is steered, which it does not do.
        """
        if self.columns.any_min_p:
            return None
        count = len(self.facts.controls)
        self._places = self.forward_batch.req_pool_indices[:count]
        self._begin(sampling_info.temperatures.view(-1))
        self.readings = torch.empty(4, count)
        return self.columns.packed, self._places.long(), self.steering.state, self.readings

    def show_temperatures(self, sampling_info: Any) -> None:
        """Put the temperatures of a fused draw into ``sampling_info``, for those who compute from them afterwards."""
        assert self.readings is not None
        own = sampling_info.temperatures.view(-1)
        steered = self.columns.by_temperature & (sampling_info.top_ks != _GREEDY_TOP_K)
        sampling_info.temperatures = torch.where(steered, self.readings[0].exp(), own).view(-1, 1)

    def settle(
        self, entropy_nats: torch.Tensor, varentropy: torch.Tensor, own_varentropy: torch.Tensor
    ) -> None:
        """Move the state by what the step measured, and keep the step's own readings.

        Args:
            entropy_nats: ``[B]`` of the distribution at this step's temperatures, before top-k, top-p and min-p.
            varentropy: ``[B]`` likewise.
            own_varentropy: ``[B]`` of the same logits at temperature 1.
        """
        assert self._rows is not None
        assert self._used is not None
        assert self._saturated is not None
        following, saturated = self._used, self._saturated
        if self.columns.any_feedback:
            frozen = ~entropy_nats.isfinite()
            following = next_log_temperature(
                self._used, self._rows, entropy_nats, varentropy, frozen, own_varentropy
            )
            steered = self._rows.controlled & (self._rows.mode != EXACT)
            at_end = (self._used <= self._rows.min_log_temperature) | (
                self._used >= self._rows.max_log_temperature
            )
            saturated = saturated | (steered & at_end)
        self.steering.log_temperature[self._places] = following
        self.readings = torch.stack(
            (self._used, following, saturated.to(torch.float32), self._rows.target_nats, *(self._cut or ()))
        )

    def settle_from_logits(self, logits: torch.Tensor, sampling_info: Any) -> None:
        """The same for a sampler that measures nothing; before it writes over ``logits``."""
        if not self.columns.any_feedback:
            nothing = torch.zeros_like(self.columns.target)
            self.settle(nothing, nothing, nothing)
            return
        at = row_statistics(logits, temperature=sampling_info.temperatures)
        own = row_statistics(logits)
        unknown = float("nan")
        self.settle(
            torch.where(at.valid, at.entropy_nats, unknown),
            at.varentropy,
            own.varentropy,
        )

    def _begin(self, own: torch.Tensor) -> None:
        steering, places = self.steering, self._places
        assert places is not None
        for row, remembered, prompt_tokens in self.facts.begins:
            # Indices of one element, not numbers: to make a number of a tensor is to wait for the device.
            at = places[row : row + 1].long()
            first = own[row : row + 1].log()
            steering.state[0, at] = first if remembered is None else torch.full_like(first, remembered)
            control = self.facts.controls[row]
            if control is not None and control.target_nats is None and steering.store is not None:
                # The last slot's entropy is of the token that is sampled now.
                slots = steering.req_to_token[at, : max(0, prompt_tokens - 1)].long()
                steering.state[1, at] = auto_target_nats(steering.store.entropy_nats[slots])


@dataclass(frozen=True, slots=True)
class SteeringReadings:
    """What a step did to its requests, on its way to the host in SGLang's auxiliary output."""

    steering: Steering
    facts: StepFacts
    values: torch.Tensor
    """``[4, B]``, or ``[6, B]`` where a threshold is steered: ln T of this token and of the next, whether the target was
    out of reach, the target; min-p and the entropy that it leaves."""

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> SteeringReadings:
        """Start the copy with SGLang's own asynchronous copy."""
        return SteeringReadings(self.steering, self.facts, copy_tensor(self.values))

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Give each committed token's reading to its request; ``commits`` is aligned with ``batch.reqs``."""
        counters = self.steering.counters
        columns = zip(*self.values.tolist(), strict=True)
        for req, commit, control, (used, following, saturated, target, *cut) in zip(
            batch.reqs, commits, self.facts.controls, columns, strict=False
        ):
            if commit is None or control is None:
                continue
            state = state_of(req)
            state.log_temperature = following
            min_p, left = cut if control.actuator == "min_p" and cut else (math.nan, math.nan)
            state.target_nats = target
            state.steer(
                commit.output_index,
                Steered(
                    temperature=math.exp(used),
                    saturated=bool(saturated),
                    min_p=min_p if math.isfinite(min_p) else None,
                    cut_entropy_nats=left if math.isfinite(left) else None,
                ),
            )
            counters.steered_tokens += 1
            counters.saturated_tokens += bool(saturated)


def read_step(batch: Any) -> StepFacts | None:
    """Host facts of a ``ScheduleBatch``; ``None`` when nobody in it is steered."""
    states = [state_of(req) for req in batch.reqs]
    if all(state.control is None for state in states):
        return None
    begins: tuple[tuple[int, float | None, int], ...] = ()
    if batch.forward_mode.is_extend():
        decoding = len(batch.decoding_reqs or ())
        begins = tuple(
            (row, state.log_temperature, len(req.origin_input_ids))
            for row, (req, state) in enumerate(zip(batch.reqs, states, strict=True))
            if row < len(states) - decoding and state.control is not None
        )
    return StepFacts(tuple(state.control for state in states), begins)


def _columns(controls: tuple[Control | None, ...], device: torch.device) -> _Columns:
    def column(value: Callable[[Control], float], otherwise: float) -> torch.Tensor:
        numbers = [otherwise if control is None else value(control) for control in controls]
        return torch.tensor(numbers, dtype=torch.float32).to(device, non_blocking=True)

    def flags(value: Callable[[Control], bool]) -> tuple[torch.Tensor, bool]:
        found = [control is not None and value(control) for control in controls]
        return torch.tensor(found, dtype=torch.bool).to(device, non_blocking=True), any(found)

    by_temperature, any_temperature = flags(lambda c: c.actuator == "temperature")
    by_min_p, any_min_p = flags(lambda c: c.actuator == "min_p")
    _, any_exact = flags(lambda c: c.actuator == "temperature" and c.mode == "exact")
    _, any_feedback = flags(lambda c: c.actuator == "temperature" and c.mode != "exact")
    target = column(lambda c: math.nan if c.target_nats is None else c.target_nats, math.inf)
    gain = column(lambda c: c.gain, 0.0)
    mode = column(lambda c: MODE_CODES[c.mode], EXACT)
    low, high = column(lambda c: c.low, 0.0), column(lambda c: c.high, 0.0)
    return _Columns(
        target=target,
        gain=gain,
        mode=mode.to(torch.int32),
        low=low,
        high=high,
        by_temperature=by_temperature,
        by_min_p=by_min_p,
        packed=torch.stack((target, gain, torch.where(by_temperature, mode, -1.0), low, high)),
        any_temperature=any_temperature,
        any_min_p=any_min_p,
        any_exact=any_exact,
        any_feedback=any_feedback,
    )


_installed: Steering | None = None


def install(steering: Steering | None) -> None:
    """Make ``steering`` the one of this process; ``None`` takes it away."""
    global _installed  # noqa: PLW0603 -- one scheduler a process; SGLang's hooks carry no state of their own
    _installed = steering


def installed() -> Steering | None:
    """The process's steering; ``None`` in processes without a scheduler, and during warm-up."""
    return _installed
