"""Which requests sample at a target entropy, and how; decided once for each request, in the scheduler process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from sgl_entropic.config.model import SamplingConfig
from sgl_entropic.errors import ConfigError, RequestParameterError
from sgl_entropic.feedback.stability import Mode, require_stable
from sgl_entropic.request_params.parameters import AUTO, HOW, OFF, RequestParams

Actuator = Literal["temperature", "min_p"]


@dataclass(frozen=True, slots=True)
class Control:
    """How one request is steered.

    Attributes:
        target_nats: entropy to sample at; ``None`` is that of the request's own prompt.
        mode: ``exact``, ``newton`` or ``fixed``.
        gain: step of the latter two.
        actuator: what is moved.
        low: natural logarithm of the least temperature's share of the request's own.
        high: of the largest one's.
    """

    target_nats: float | None
    mode: Mode
    gain: float
    actuator: Actuator
    low: float
    high: float


GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""SGLang's sampling parameters that hold an answer to a grammar."""


def control_of(params: RequestParams, defaults: SamplingConfig, *, grammar: bool = False) -> Control | None:
    """What ``params`` ask for over the server's ``defaults``; ``None`` leaves the temperature alone.

    With a ``grammar`` the temperature is lowered only, unless the request itself names the most: tokens that are nearly
    certain there are those that end a string or a list, and heated ones let it go on to the limit.
    """
    target = defaults.target_nats if params.target_entropy_nats is None else params.target_entropy_nats
    if target is None or target == OFF:
        return None
    return Control(
        target_nats=None if target == AUTO else float(target),
        mode=params.sampling_mode or defaults.mode,  # type: ignore[arg-type]
        gain=defaults.gain if params.sampling_gain is None else float(params.sampling_gain),
        actuator=params.sampling_actuator or defaults.actuator,  # type: ignore[arg-type]
        low=math.log(params.min_temperature_scale or defaults.min_temperature_scale),
        high=0.0
        if grammar and params.max_temperature_scale is None
        else math.log(params.max_temperature_scale or defaults.max_temperature_scale),
    )


def check_control(
    params: RequestParams,
    defaults: SamplingConfig,
    sampling: dict[str, Any],
    vocab_size: int,
    *,
    prompts: bool,
) -> None:
    """Refuse what contradicts itself or cannot be stable.

    Args:
        params: the request's parameters.
        defaults: the server's.
        sampling: SGLang's sampling parameters as the client sent them.
        vocab_size: of the model.
        prompts: whether this server keeps the entropies of prompts.

    Raises:
        RequestParameterError: naming the key and what is accepted.
    """
    asked = [name for name in HOW if getattr(params, name) is not None]
    control = control_of(params, defaults)
    if control is None:
        if asked:
            raise RequestParameterError(
                f"{asked[0]} = {getattr(params, asked[0])!r} says how to follow a target entropy, and there is none; "
                "give target_entropy_nats too"
            )
        return
    if control.target_nats is None and not prompts:
        raise RequestParameterError(
            f"target_entropy_nats = {AUTO!r} needs the entropies of prompts, and this server runs with "
            "--entropic-telemetry off or --entropic-telemetry-prompt-surprisal off; accepted: a number"
        )
    own = params.target_entropy_nats is not None
    temperature = sampling.get("temperature")
    if own and isinstance(temperature, int | float) and 0 <= temperature < 1e-6:
        raise RequestParameterError(
            f"target_entropy_nats = {params.target_entropy_nats!r} contradicts temperature = {temperature}, which always "
            "takes the likeliest token; accepted: a temperature above 0"
        )
    if own and sampling.get("top_k") == 1:
        raise RequestParameterError(
            f"target_entropy_nats = {params.target_entropy_nats!r} contradicts top_k = 1, which always takes the likeliest "
            "token; accepted: another top_k"
        )
    if (sampling.get("beam_width") or 1) != 1 and own:
        raise RequestParameterError(
            "target_entropy_nats is not available with beam_width > 1, which draws nothing; accepted: beam_width 1"
        )
    _check_mode(control, "sampling_actuator", "sampling_mode")
    _check_effect(params, control)
    try:
        require_stable(control.mode, control.gain, vocab_size)
    except ConfigError as error:
        raise RequestParameterError(str(error).replace("sampling.gain", "sampling_gain")) from None


def check_settings(defaults: SamplingConfig) -> None:
    """Refuse a server's own settings that contradict each other, whatever the model.

    Raises:
        ConfigError: naming the setting and what is accepted.
    """
    try:
        _check_mode(_for_any_target(defaults), "sampling.actuator", "sampling.mode")
    except RequestParameterError as error:
        raise ConfigError(str(error)) from None


def check_defaults(defaults: SamplingConfig, vocab_size: int, *, prompts: bool) -> None:
    """Refuse a server's own setting that cannot work, with its own target or with a request's.

    Raises:
        ConfigError: naming the setting and what is accepted.
    """
    if defaults.target_nats == AUTO and not prompts:
        raise ConfigError(
            "sampling.target_nats = auto needs the entropies of prompts; expected telemetry.enabled and "
            "telemetry.prompt_surprisal on, or a number"
        )
    check_settings(defaults)
    control = _for_any_target(defaults)
    require_stable(control.mode, control.gain, vocab_size)


def _for_any_target(defaults: SamplingConfig) -> Control:
    """How a request is steered that names a target and nothing else."""
    control = control_of(RequestParams(target_entropy_nats=0.0), defaults)
    assert control is not None, "there is a target"
    return control


def _check_effect(params: RequestParams, control: Control) -> None:
    """Refuse what the request says for nothing."""
    if params.sampling_gain is not None and control.mode == "exact":
        raise RequestParameterError(
            f"sampling_gain = {params.sampling_gain!r} has no effect with sampling_mode = 'exact'; "
            "accepted: with newton or fixed"
        )
    for name in ("min_temperature_scale", "max_temperature_scale"):
        if getattr(params, name) is not None and control.actuator == "min_p":
            raise RequestParameterError(
                f"{name} = {getattr(params, name)!r} has no effect with sampling_actuator = 'min_p'; "
                "accepted: with temperature"
            )


def _check_mode(control: Control, actuator: str, mode: str) -> None:
    if control.actuator == "min_p" and control.mode != "exact":
        raise RequestParameterError(
            f"{mode} = {control.mode!r} contradicts {actuator} = 'min_p', whose entropy falls in steps and has no slope; "
            "accepted: exact"
        )
