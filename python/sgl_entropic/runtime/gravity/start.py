"""Brings gravity into a scheduler process, and SGLang's hidden states to where it is scored."""

from __future__ import annotations

from typing import Any

from sgl_entropic.config import GravityConfig
from sgl_entropic.gravity.settings import Tier
from sgl_entropic.runtime.gravity import fleet, meter
from sgl_entropic.runtime.gravity.meter import Meter
from sgl_entropic.runtime.recorder import Recorder
from sgl_entropic.runtime.request_state import state_of
from sgl_entropic.runtime.where_fast import compiled_kernels_asked_for


def ask_for_hidden_states(server_args: Any, config: GravityConfig) -> None:
    """Have SGLang keep the last hidden states of every step on the device, in captured graphs too.

    Args:
        server_args: the parsed flags, changed in place.
        config: the settings.
    """
    asked = server_args.return_hidden_states_mode or server_args.enable_return_hidden_states
    if config.enabled and config.signal == "hidden" and not asked:
        server_args.return_hidden_states_mode = "last"


def install(scheduler: Any, config: GravityConfig, recorder: Recorder) -> None:
    """Score what ``scheduler`` serves from here on.

    Raises:
        ConfigError: the mean vector is not one of its model.
    """

    def tiers() -> list[Tier]:
        narratives = [state_of(req).narrative for req in fleet.running(scheduler)]
        return ["weak" if narrative is None else narrative.tier for narrative in narratives]

    if config.signal == "hidden":
        meter.install(
            Meter.of(
                config,
                scheduler.req_to_token_pool.req_to_token,
                scheduler.model_config.hidden_size,
                recorder.counters,
                compiled=compiled_kernels_asked_for(),
            )
        )
    fleet.install(tiers)
    recorder.fleet_share = fleet.fleet_share


def state(config: GravityConfig) -> dict[str, Any]:
    """For ``/server_info``."""
    if not config.enabled:
        return {"enabled": False}
    here = meter.installed()
    return {
        "enabled": True,
        "signal": config.signal,
        "fleet_share": fleet.fleet_share(),
        **({} if here is None else here.state()),
    }
