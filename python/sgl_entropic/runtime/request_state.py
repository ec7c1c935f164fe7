"""What the scheduler process remembers of one request; it lives on SGLang's ``Req`` and dies with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sgl_entropic.errors import RequestParameterError
from sgl_entropic.feedback.entropic_time import EntropicTime
from sgl_entropic.gravity.narrative import Narrative
from sgl_entropic.request_params import RequestParams, parse_custom_params
from sgl_entropic.runtime.active_config import active_config
from sgl_entropic.runtime.attention.request import RequestPruning, pruning_of
from sgl_entropic.runtime.control import GRAMMARS, Control, control_of
from sgl_entropic.runtime.gravity.settings import narrative_of
from sgl_entropic.signals import TokenReading

_ATTRIBUTE = "_sgl_entropic"


class Steered(NamedTuple):
    """How one token was drawn towards a target entropy; ``None`` where unknown, or where that was not steered.

    Attributes:
        temperature: of the draw.
        saturated: whether the target was out of reach.
        min_p: threshold of the draw.
        cut_entropy_nats: entropy of what the threshold left.
    """

    temperature: float | None
    saturated: bool | None
    min_p: float | None = None
    cut_entropy_nats: float | None = None


NOT_STEERED = Steered(None, None)


@dataclass(slots=True)
class RequestState:
    """Readings of one request, in output order; survives retraction together with the ``Req``.

    ``fresh`` is true from the moment the request is matched against the prefix cache until its first forward pass
    after that: then its pending surprisal has to be set anew. ``boundary_given_back`` says whether that match was
    shortened, see :mod:`.prefix_boundary`. ``control`` says how the request is steered, ``log_temperature`` is that of its
    next token as last heard from the device, ``target_nats`` the entropy held, ``steered`` one entry for each token.
    ``pruning`` says what its decode steps read; ``None`` reads all. ``narrative`` says how decided its text is; ``None`` where
    that is not asked.
    """

    params: RequestParams
    fresh: bool = True
    boundary_given_back: bool = False
    readings: list[TokenReading] = field(default_factory=list)
    time: EntropicTime = field(default_factory=EntropicTime)
    prompt_fetched: bool = False
    prompt: list[list[float | None]] | None = None
    sent: int = 0
    prompt_sent: bool = False
    control: Control | None = None
    log_temperature: float | None = None
    target_nats: float | None = None
    steered: list[Steered] = field(default_factory=list)
    pruning: RequestPruning | None = None
    narrative: Narrative | None = None

    def entropy_at(self, output_index: int) -> float | None:
        """Entropy in nats that output token ``output_index`` was drawn from, as far as it is known."""
        return self.readings[output_index].entropy_nats if output_index < len(self.readings) else None

    def add(self, output_index: int, reading: TokenReading) -> None:
        """Record the reading of output token ``output_index``."""
        if output_index < len(self.readings):
            # Never seen with plain decoding; keeps the lists aligned with the output whatever the host does.
            del self.readings[output_index:]
            self._recount()
        while len(self.readings) < output_index:
            self._append(TokenReading(None, None, None, None))
        self._append(reading)
        if self.narrative is not None:
            self.narrative.add(
                output_index,
                entropy_nats=reading.entropy_nats,
                surprisal_nats=reading.surprisal_nats,
                gravity=reading.gravity,
                energy=reading.energy,
            )

    def steer(self, output_index: int, steered: Steered) -> None:
        """Record how output token ``output_index`` was drawn."""
        del self.steered[output_index:]
        self.steered.extend([NOT_STEERED] * (output_index - len(self.steered)))
        self.steered.append(steered)

    def steered_at(self, output_index: int) -> Steered:
        """How output token ``output_index`` was drawn, as far as it is known."""
        return self.steered[output_index] if output_index < len(self.steered) else NOT_STEERED

    def _append(self, reading: TokenReading) -> None:
        self.readings.append(reading)
        self.time.update(reading.entropy_nats, reading.surprisal_nats)

    def _recount(self) -> None:
        self.time.reset()
        for reading in self.readings:
            self.time.update(reading.entropy_nats, reading.surprisal_nats)


def state_of(req: Any) -> RequestState:
    """The state of a ``Req``, created on first use."""
    state = getattr(req, _ATTRIBUTE, None)
    if state is None:
        try:
            params = parse_custom_params(_sent_by_the_client(req.sampling_params.custom_params))
        except RequestParameterError:
            # The front process refuses these; a request that enters by another door is served without readings.
            params = RequestParams(return_summary=False)
        # Greedy requests and beams draw nothing.
        draws = getattr(req.sampling_params, "top_k", None) != 1 and getattr(req, "beam_group", None) is None
        grammar = any(getattr(req.sampling_params, name, None) for name in GRAMMARS)
        control = control_of(params, active_config().sampling, grammar=grammar) if draws else None
        state = RequestState(params, control=control)
        state.pruning = pruning_of(req, params)
        state.narrative = narrative_of(req)
        setattr(req, _ATTRIBUTE, state)
    return state


def _sent_by_the_client(custom_params: Any) -> Any:
    # SGLang adds the request itself for custom logit processors, which is nothing that a client can send.
    if not isinstance(custom_params, dict):
        return custom_params
    return {key: value for key, value in custom_params.items() if key != "__req__"}
