"""The server's settings of narrative gravity, and what is refused of them at start."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sgl_entropic.config import GravityConfig
from sgl_entropic.errors import ConfigError
from sgl_entropic.gravity.narrative import Narrative
from sgl_entropic.gravity.settings import MEDIUM_GRAVITY, STRONG_GRAVITY, GravitySettings, Thresholds
from sgl_entropic.runtime.active_config import active_config


@cache
def settings_of(config: GravityConfig) -> GravitySettings:
    """The rules' settings from the server's."""
    strong, medium = config.gravity_threshold, config.medium_gravity_threshold
    strong = STRONG_GRAVITY[config.signal] if strong is None else strong
    return GravitySettings(
        signal=config.signal,
        window=config.window,
        top_k=config.top_k,
        centre_decay=config.centre_decay,
        strong=Thresholds(strong, config.entropy_threshold_nats),
        medium=Thresholds(
            min(MEDIUM_GRAVITY[config.signal], strong) if medium is None else medium,
            config.medium_entropy_threshold_nats,
        ),
        gravity_margin=config.gravity_margin,
        entropy_margin_nats=config.entropy_margin_nats,
        dwell_tokens=config.dwell_tokens,
        opening_tokens=config.opening_tokens,
        free_energy_temperature=config.free_energy_temperature,
    )


def narrative_of(req: Any) -> Narrative | None:
    """The narrative of a ``Req`` of SGLang; ``None`` where gravity is off, and for beams."""
    config = active_config().gravity
    if not config.enabled or getattr(req, "beam_group", None) is not None:
        return None
    return Narrative(settings_of(config), req.vocab_size)


def check_config(config: GravityConfig) -> None:
    """Refuse settings that contradict each other, and a mean that cannot be read.

    Raises:
        ConfigError: naming the setting and what is accepted.
    """
    settings = settings_of(config)
    if config.top_k > config.window:
        raise ConfigError(
            f"gravity.top_k = {config.top_k} is more than gravity.window = {config.window}; expected at most as many"
        )
    if settings.medium.gravity > settings.strong.gravity:
        raise ConfigError(
            f"gravity.medium_gravity_threshold = {settings.medium.gravity} is above gravity.gravity_threshold = "
            f"{settings.strong.gravity}; expected at most as much"
        )
    if settings.medium.entropy_nats < settings.strong.entropy_nats:
        raise ConfigError(
            f"gravity.medium_entropy_threshold_nats = {settings.medium.entropy_nats} is below "
            f"gravity.entropy_threshold_nats = {settings.strong.entropy_nats}; expected at least as much"
        )
    if config.mean_path is not None:
        if config.signal != "hidden":
            raise ConfigError(
                f"gravity.mean_path has no effect with gravity.signal = {config.signal}; expected hidden, or no mean"
            )
        load_mean(config.mean_path)


def load_mean(path: str, hidden_size: int | None = None) -> NDArray[np.float32]:
    """The mean vector ``[hidden]`` of an ``.npy`` file.

    Args:
        path: of the file.
        hidden_size: of the model, when it is known.

    Raises:
        ConfigError: it cannot be read, or is no finite vector of that size.
    """
    numbers = (
        "finite numbers, as many as the model's hidden ones"
        if hidden_size is None
        else f"{hidden_size} finite numbers"
    )
    accepted = f"an .npy file with {numbers}"
    try:
        mean = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(
            f"gravity.mean_path = {path} cannot be read ({error}); expected {accepted}"
        ) from None
    found = None
    if not isinstance(mean, np.ndarray) or mean.ndim != 1 or mean.size == 0 or mean.dtype.kind != "f":
        shape = getattr(mean, "shape", None)
        found = f"has shape {shape} and type {getattr(mean, 'dtype', type(mean).__name__)}"
    elif hidden_size is not None and mean.shape[0] != hidden_size:
        found = f"has {mean.shape[0]} numbers"
    elif not (np.abs(mean) <= np.finfo(np.float32).max).all():
        found = "has numbers that are not finite"
    if found is not None:
        raise ConfigError(f"gravity.mean_path = {path} {found}; expected {accepted}")
    return np.ascontiguousarray(mean, dtype=np.float32)
