"""The table of per-request parameters and the value that a request's become."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

PARAMETERS_KEY = "entropic"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter that a request may carry: a switch, a number in a range, one of some words, or a name.

    Attributes:
        name: its key.
        accepted: type and range in words, for messages and documentation.
        top_level: whether it may also stand at the top level of a body.
        help: its effect.
        switch: whether true and false are accepted.
        low: least number accepted; ``None`` when no number is.
        high: largest number accepted.
        words: texts accepted.
        characters: most of a name of the client's own choice; 0 when none is accepted.
    """

    name: str
    accepted: str
    top_level: bool
    help: str
    switch: bool = False
    low: float | None = None
    high: float = math.inf
    words: tuple[str, ...] = ()
    characters: int = 0

    def accepts(self, value: object) -> bool:
        """Whether ``value``, from a client's JSON, is of the type and in the range."""
        if isinstance(value, bool):
            return self.switch
        if isinstance(value, str):
            return value in self.words or (0 < len(value) <= self.characters and value.isprintable())
        number = isinstance(value, int | float) and self.low is not None
        return number and self.low <= value <= self.high  # type: ignore[operator]  # NaN is not


AUTO, OFF = "auto", "off"
MAX_TARGET_NATS = 20.0
MAX_GAIN = 10.0
LEAST_SCALE, LARGEST_SCALE = 0.05, 20.0
MODES = ("fixed", "newton", "exact")
ACTUATORS = ("temperature", "min_p")
MOST_CLIENT_CHARACTERS = 128
LEAST_KEEP = 0.01
POLICIES = ("surprisal", "streaming", "attention", "quest", "mixed")

PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "return_entropy", "true or false", True, "entropy and surprisal of every generated token", switch=True
    ),
    Parameter(
        "return_prompt_surprisal",
        "true or false",
        True,
        "surprisal and entropy of every prompt token",
        switch=True,
    ),
    Parameter(
        "return_summary", "true or false", False, "the summary; by default on /generate only", switch=True
    ),
    Parameter(
        "target_entropy_nats",
        f"a number from 0 to {MAX_TARGET_NATS:g}, auto or off",
        False,
        "entropy to sample at; auto: that of the prompt",
        low=0.0,
        high=MAX_TARGET_NATS,
        words=(AUTO, OFF),
    ),
    Parameter("sampling_mode", " or ".join(MODES), False, "how the target is followed", words=MODES),
    Parameter(
        "sampling_gain",
        f"a number from 0 to {MAX_GAIN:g}",
        False,
        "step of the modes fixed and newton",
        low=0.0,
        high=MAX_GAIN,
    ),
    Parameter(
        "sampling_actuator",
        " or ".join(ACTUATORS),
        False,
        "what is moved to reach the target",
        words=ACTUATORS,
    ),
    Parameter(
        "min_temperature_scale",
        f"a number from {LEAST_SCALE:g} to 1",
        False,
        "least temperature, as a share of the request's own",
        low=LEAST_SCALE,
        high=1.0,
    ),
    Parameter(
        "max_temperature_scale",
        f"a number from 1 to {LARGEST_SCALE:g}",
        False,
        "largest temperature, as a multiple of the request's own",
        low=1.0,
        high=LARGEST_SCALE,
    ),
    Parameter(
        "attention_pruning",
        "true or false",
        False,
        "whether decode steps may leave blocks of the context out",
        switch=True,
    ),
    Parameter(
        "attention_policy", " or ".join(POLICIES), False, "how the blocks to read are chosen", words=POLICIES
    ),
    Parameter(
        "min_keep_ratio",
        f"a number from {LEAST_KEEP:g} to 1",
        False,
        "share of the context that is read when nothing is uncertain",
        low=LEAST_KEEP,
        high=1.0,
    ),
    Parameter(
        "max_keep_ratio",
        f"a number from {LEAST_KEEP:g} to 1",
        False,
        "share that is read at most; equal to the least one, it is fixed",
        low=LEAST_KEEP,
        high=1.0,
    ),
    Parameter(
        "client_id",
        f"a name of 1 to {MOST_CLIENT_CHARACTERS} printable characters",
        False,
        "who asks, so that scheduling can be fair between clients",
        characters=MOST_CLIENT_CHARACTERS,
    ),
)
BY_NAME = {parameter.name: parameter for parameter in PARAMETERS}
TOP_LEVEL = tuple(parameter.name for parameter in PARAMETERS if parameter.top_level)
# What says how, and nothing without a target.
HOW = tuple(name for name in BY_NAME if name.startswith("sampling_") or name.endswith("_temperature_scale"))
ATTENTION = tuple(name for name in BY_NAME if name.startswith("attention_") or name.endswith("_keep_ratio"))
# What another extension may mean by the same name: no slip where it stands in another place than ours.
COMMON = (*HOW, *ATTENTION, "client_id")


@dataclass(frozen=True, slots=True)
class RequestParams:
    """The parameters of one request; ``None`` leaves the choice to the route or the server."""

    return_entropy: bool = False
    return_prompt_surprisal: bool = False
    return_summary: bool | None = None
    target_entropy_nats: float | str | None = None
    sampling_mode: str | None = None
    sampling_gain: float | None = None
    sampling_actuator: str | None = None
    min_temperature_scale: float | None = None
    max_temperature_scale: float | None = None
    attention_pruning: bool | None = None
    attention_policy: str | None = None
    min_keep_ratio: float | None = None
    max_keep_ratio: float | None = None
    client_id: str | None = None

    def merged(self, other: RequestParams) -> RequestParams:
        """Both askings together: what either asks to return is given; of the rest, ``other`` decides where it speaks."""
        values = {name: getattr(self, name) for name in BY_NAME}
        for name in BY_NAME:
            value = getattr(other, name)
            values[name] = values[name] or value if name in TOP_LEVEL else _first(value, values[name])
        return RequestParams(**values)

    def to_custom_params(self) -> dict[str, bool | float | str]:
        """The object that belongs under ``custom_params.entropic``."""
        values = {name: getattr(self, name) for name in BY_NAME}
        return {name: value for name, value in values.items() if value is not None}


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
